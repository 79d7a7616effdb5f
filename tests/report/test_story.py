"""The policy's story, against a slow and obvious count."""

from unshuffle.analysis.moments import read_moments
from unshuffle.report.story import progress_episodes, tell
from unshuffle.run import Run


def test_the_story_counts_rewards(run: Run) -> None:
    told = " ".join(tell(run, "temporal", read_moments(run, "temporal")))
    rewards = [
        entry["reward"]
        for entry in run.metrics("episode")
        if entry["task"] == "temporal" and entry["reward"] is not None
    ]
    assert f"In {sum(reward > 0 for reward in rewards)} of {len(rewards)} episodes" in told
    assert "2 groups" in told


def test_without_policy_the_story_is_short(uniform_run: Run) -> None:
    (told,) = tell(uniform_run, "spatial", read_moments(uniform_run, "spatial"))
    assert told.startswith("No policy")


def test_a_policy_that_learns_from_what_draws_are_worth(run: Run, progress_run: Run) -> None:
    assert progress_episodes(run, "spatial") == []
    values = [entry["draw_value"] for entry in progress_episodes(progress_run, "spatial")]
    differing = sum(max(some) - min(some) > 0.05 for some in values)
    assert len(values) == 3
    told = " ".join(tell(progress_run, "spatial", read_moments(progress_run, "spatial")))
    assert f"in {differing} of 3 episodes draws of some groups were worth more" in told
    assert "worth more" not in " ".join(tell(run, "spatial", read_moments(run, "spatial")))


def test_a_policy_that_has_drawn_nothing_has_not_begun(run: Run) -> None:
    moments = read_moments(run, "spatial")
    first = next(place for place, moment in enumerate(moments) if moment.groups is not None)
    assert "has not begun" in tell(run, "spatial", moments[: first + 1])[0]
    assert "From iteration" in tell(run, "spatial", moments[: first + 2])[0]
