"""The policy's story, against a slow and obvious count."""

from unshuffle.analysis.moments import read_moments
from unshuffle.report.story import tell
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
