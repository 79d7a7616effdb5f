"use strict";
(() => {
  const {make, number, setText, nearest, drawChart, mosaic, setStrip, scalesOf, showPolicy, mapErrors, decodeErrors} = drawing;
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");

  // ---- the address holds the view

  const query = new URLSearchParams(location.search);
  const BETWEEN = 400; // ms between changes of the address: Safari allows 100 in 30 seconds
  let written = -BETWEEN, waiting = null;

  function writeAddress() {
    clearTimeout(waiting);
    waiting = null;
    written = performance.now();
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  }

  function remember(name, values) {
    query.delete(name);
    for (const value of [values].flat()) if (value !== null && value !== "") query.append(name, value);
    if (waiting !== null) return;
    const wait = written + BETWEEN - performance.now();
    if (wait <= 0) writeAddress(); else waiting = setTimeout(writeAddress, wait);
  }

  addEventListener("pagehide", () => { if (waiting !== null) writeAddress(); });

  const address = (path, values) => {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) for (const one of [value].flat()) if (one !== null) parameters.append(name, one);
    return `${path}?${parameters}`;
  };
  const pathOf = (name) => name.split("/").map(encodeURIComponent).join("/");

  // ---- data

  async function ask(path, options) {
    const response = await fetch(path, options);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error || response.statusText);
    return answer;
  }

  function problem(element, error) {
    element.replaceChildren(make("p", {class: "problem", role: "alert"}, error.message));
  }

  // Calls a function with the versions of all runs, now and whenever one changes, as long as the page is visible: a
  // browser opens few connections to a server, and each stream holds one.
  function listen(changed) {
    let source = null, versions = null;
    const renew = oneAtATime(async () => {
      try { await changed(versions); } catch (error) {
        connection.textContent = `not up to date: ${error.message}`;
        setTimeout(renew, 3000);
      }
    });
    function follow() {
      if (document.hidden === (source === null)) return;
      if (document.hidden) { stop(); return; }
      source = new EventSource("/api/events");
      source.onmessage = (event) => { connection.textContent = "live"; versions = JSON.parse(event.data); renew(); };
      source.onerror = () => { connection.textContent = "the server does not answer"; };
    }
    function stop() {
      if (source !== null) source.close();
      source = null;
    }
    document.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", stop);
    addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
    follow();
  }

  // Returns a function that runs another one, never twice at a time; asked meanwhile, once more afterwards.
  function oneAtATime(work) {
    let busy = false, again = false;
    return async function next() {
      if (busy) { again = true; return; }
      busy = true;
      try { await work(); } finally { busy = false; }
      if (again) { again = false; await next(); }
    };
  }

  // Replaces what an element shows only if it has changed, so that the focus and selected text stay.
  const shownBefore = new WeakMap();
  function showChanged(element, value, children) {
    const text = JSON.stringify(value);
    if (shownBefore.get(element) === text) return;
    shownBefore.set(element, text);
    element.replaceChildren(...children());
  }

  const stateOf = (row) => make("span", {class: `state ${row.state}`, title: row.message}, row.state);

  // ---- charts that are renewed and keep their zoom

  const keys = () => make("span", {class: "keys"}, "On the keyboard, arrow keys read values, + and − zoom, Escape zooms out.");

  function zoomable(figure, chart, name = `zoom ${chart.title}`) {
    const drawn = drawChart(figure, chart, (range) => remember(name, range === null ? null : range.map((value) => value.toPrecision(6)).join("~")));
    const stored = (query.get(name) || "").split("~").map(Number);
    if (stored.length === 2 && stored[0] < stored[1]) drawn.zoom(stored);
    return drawn;
  }

  function chartGrid(element) {
    const drawn = new Map();
    return (charts) => {
      for (const chart of charts) {
        if (drawn.has(chart.title)) { drawn.get(chart.title).update(chart); continue; }
        const figure = make("figure", {class: "chart"}, make("figcaption", {}, make("b", {}, chart.title), " ", make("span", {}, chart.unit), make("small", {}, chart.note)));
        element.append(figure);
        drawn.set(chart.title, {figure, ...zoomable(figure, chart)});
      }
      const titles = new Set(charts.map((chart) => chart.title));
      for (const [title, {figure}] of drawn) if (!titles.has(title)) { drawn.delete(title); figure.remove(); }
    };
  }

  // ---- the table of runs

  const COLUMNS = [
    ["name", "run", "folder of the run"],
    ["state", "state", "training, finished, stopped, stale (no heartbeat for 30 seconds), failed or damaged"],
    ["preset", "preset", "options that the run began with"],
    ["tasks", "tasks", "what is learned: S the order of tiles, T the order of frames, R rotations, I instances"],
    ["data", "data", "images and videos that it is trained on"],
    ["progress", "progress", "iterations"],
    ["left", "time left", "at the recent speed, validations included"],
    ["speed", "speed", "training, without validations"],
    ["errors", "error", "fraction of held-out samples that the network gets wrong, of each task; close to 1 is chance. Point at an error to see when it was measured"],
    ["retrieval", "retrieval", "how often the nearest neighbour of a labelled image has its class"],
  ];

  const TIGHT = ["progress", "left", "speed", "errors", "retrieval"]; // columns that are not broken into lines

  function showRuns() {
    document.title = "Runs · unshuffle";
    let rows = [];
    const lines = new Map();
    const filter = make("input", {type: "search", id: "filter", placeholder: "text in any column"});
    filter.value = query.get("filter") || "";
    const compare = make("a", {class: "button main", id: "compare"}, "Compare");
    const csv = make("a", {class: "button", id: "csv", download: "runs.csv"}, "CSV");
    const heads = make("tr", {role: "row"}, make("th", {role: "columnheader", scope: "col"}, "compare"));
    const body = make("tbody", {role: "rowgroup"});
    const none = make("p", {class: "hint"});
    const options = make("div", {id: "options"});
    for (const [column, title, meaning] of COLUMNS) {
      const button = make("button", {type: "button", title: meaning}, title);
      button.addEventListener("click", () => {
        const descending = query.get("sort") === column && !query.has("descending");
        remember("sort", column);
        remember("descending", descending ? "1" : null);
        show();
      });
      heads.append(make("th", {role: "columnheader", scope: "col", "data-column": column}, button));
    }
    main.replaceChildren(make("h1", {}, "Runs"),
      make("p", {class: "hint"}, "Click a run to watch it. Select several to compare them; click a heading to sort."),
      make("div", {class: "tools"}, make("label", {}, "Filter", filter), compare, csv), none,
      make("div", {class: "scroll", tabindex: 0}, make("table", {class: "all", role: "table"}, make("thead", {role: "rowgroup"}, heads), body)), options);

    const key = (row, column) => row.sort[column] === undefined || row.sort[column] === null ? row[column] : row.sort[column];

    function shown() {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const text = (row) => [...COLUMNS.map(([column]) => row[column]), row.message].join(" ").toLowerCase();
      const kept = rows.filter((row) => words.every((word) => text(row).includes(word)));
      const column = query.get("sort"), sign = query.has("descending") ? -1 : 1;
      if (column) {
        kept.sort((one, other) => {
          const [first, second] = [key(one, column), key(other, column)];
          if (first === "" || second === "") return (first === "") - (second === "");
          return sign * (typeof first === "number" && typeof second === "number" ? first - second : String(first).localeCompare(String(second)));
        });
      }
      return kept;
    }

    // A line is made once and only what changes in it is renewed: whatever is focused, selected or being clicked stays.
    function makeLine(name) {
      const box = make("input", {type: "checkbox", "aria-label": `compare ${name}`, "data-run": name});
      box.addEventListener("change", () => {
        remember("run", box.checked ? [...query.getAll("run"), name] : query.getAll("run").filter((other) => other !== name));
        show();
      });
      const cells = new Map(COLUMNS.map(([column, title]) => [column, make("td", {role: "cell", "data-title": title, class: TIGHT.includes(column) ? "tight" : ""})]));
      cells.get("name").append(make("a", {href: `/run/${pathOf(name)}`}, name));
      const element = make("tr", {"data-name": name, role: "row"}, make("td", {role: "cell", "data-title": "compare"}, box), ...cells.values());
      return {element, update(row) {
        box.checked = query.getAll("run").includes(name);
        for (const column of ["preset", "tasks", "data", "left", "speed", "retrieval"]) setText(cells.get(column), row[column]);
        showChanged(cells.get("state"), [row.state, row.message], () => [stateOf(row), row.message ? make("small", {class: "why", title: row.message}, row.message) : ""]);
        showChanged(cells.get("progress"), [row.progress, row.fraction], () => row.progress ? [row.progress, make("span", {class: "bar"}, make("i", {style: `width: ${100 * row.fraction}%`}))] : []);
        showChanged(cells.get("errors"), row.errors, () => row.errors.split(", ").filter(Boolean).map((line) => make("span", {class: "line"}, line)));
        for (const [column, title] of Object.entries(row.measured || {})) cells.get(column).title = title;
      }};
    }

    function showLinesOf(kept) {
      const focused = document.activeElement;
      const elements = kept.map((row) => {
        if (!lines.has(row.name)) lines.set(row.name, makeLine(row.name));
        lines.get(row.name).update(row);
        return lines.get(row.name).element;
      });
      if (elements.length !== body.children.length || elements.some((element, index) => element !== body.children[index])) body.replaceChildren(...elements);
      if (body.contains(focused)) focused.focus({preventScroll: true});
    }

    function show() {
      const kept = shown(), chosen = query.getAll("run");
      for (const head of heads.querySelectorAll("[data-column]")) {
        if (head.dataset.column === query.get("sort")) head.setAttribute("aria-sort", query.has("descending") ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      }
      showLinesOf(kept);
      none.textContent = rows.length === 0 ? "There are no runs yet: start one with unshuffle pretrain." : kept.length === 0 ? "No run contains this text." : "";
      compare.href = address("/compare", {run: chosen});
      compare.textContent = chosen.length ? `Compare ${chosen.length} runs` : "Compare";
      csv.href = address("/api/runs.csv", {run: kept.map((row) => row.name)});
      const selected = rows.filter((row) => chosen.includes(row.name) && row.options);
      const compared = selected.map((row) => ({name: row.name, options: row.options}));
      showChanged(options, compared, () => compared.length > 1 ? [differences(compared)] : []);
    }

    filter.addEventListener("input", () => { remember("filter", filter.value); show(); });
    const renew = oneAtATime(async () => { rows = (await ask("/api/runs")).runs; show(); });
    listen(renew);
  }

  // A table of the options in which runs differ.
  function differences(runs) {
    const names = Object.keys(Object.assign({}, ...runs.map((run) => run.options)));
    const differing = names.filter((name) => name !== "out" && new Set(runs.map((run) => run.options[name])).size > 1);
    if (!differing.length) return make("p", {class: "hint"}, "All options of these runs are the same.");
    return make("div", {class: "scroll", tabindex: 0}, make("h2", {}, "Differing options"), make("table", {class: "left", id: "differing"},
      make("thead", {}, make("tr", {}, make("th", {}, "option"), ...runs.map((run) => make("th", {scope: "col"}, run.colour ? make("i", {class: `dot ${run.colour}`}) : "", run.name)))),
      make("tbody", {}, ...differing.map((name) => make("tr", {}, make("th", {scope: "row"}, name), ...runs.map((run) => make("td", {class: "differs"}, run.options[name])))))));
  }

  // ---- one run

  const FACTS = [["progress", "iteration"], ["left", "time left"], ["speed", "speed"], ["errors", "errors"], ["retrieval", "retrieval"], ["preset", "preset"], ["tasks", "tasks"], ["data", "data"]];

  function showRun(name) {
    document.title = `${name} · unshuffle`;
    const state = make("span", {role: "status"}), facts = make("div", {class: "facts", hidden: ""}, state), message = make("p"), verdict = make("p");
    const missing = make("div"), head = make("div", {}, missing, facts, message, verdict), warnings = make("div", {class: "warnings"}), grid = make("div", {class: "charts"});
    const policy = make("div", {id: "policy"}), solved = make("div", {id: "solved"}), log = make("pre", {class: "log", tabindex: 0, role: "region", "aria-label": "the last lines of the log"});
    const slider = make("input", {type: "range", min: 0, max: 0, step: 1, id: "at", "aria-label": "iteration"}), label = make("output", {for: "at"});
    const curves = make("section", {}, make("h2", {}, "Curves"), make("p", {class: "hint"}, "Hover over a curve, or touch it, to read its values. Drag to zoom in, double-click to zoom out. ", keys()), grid);
    const time = make("section", {}, make("h2", {}, "Through time"),
      make("p", {class: "hint"}, "Move the slider: groups as they were then, and puzzles as the network of the nearest checkpoint solves them."),
      make("div", {class: "slider"}, slider, label), solved, policy);
    const lines = make("section", {}, make("h2", {}, "Log"), log);
    curves.hidden = time.hidden = lines.hidden = true; // until there is something to show
    main.replaceChildren(make("h1", {}, name), head, warnings, curves, time, lines);
    const draw = chartGrid(grid), values = new Map();
    for (const [column, title] of FACTS) {
      const value = make("b");
      values.set(column, value);
      facts.append(make("div", {}, make("span", {}, `${title} `), value));
    }
    let at = query.has("at") ? Number(query.get("at")) : null, iterations = [], tasks = {}, sections = new Map(), version = null, policyVersion = "", checkpoints = null;
    const chosen = () => at === null || !iterations.length ? null : iterations[nearest(iterations, at)];

    function choose(iteration) {
      at = iteration;
      remember("at", at === null ? null : String(at));
      showTime();
      renewSolved();
    }

    function showTime() {
      slider.max = Math.max(0, iterations.length - 1);
      slider.value = chosen() === null ? slider.max : iterations.indexOf(chosen());
      setText(label, iterations.length ? `iteration ${number.format(iterations[Number(slider.value)])}${at === null ? ", the latest" : ""}` : "");
      slider.setAttribute("aria-valuetext", label.textContent);
      const scales = scalesOf(Object.values(tasks).map((task) => task.data));
      for (const [task, content] of Object.entries(tasks)) {
        if (!sections.has(task)) sections.set(task, taskSection(task));
        sections.get(task)(content, scales);
      }
    }

    // Returns a function that shows what the policy of a task did, and keeps what a reader has opened, zoomed or picked.
    function taskSection(task) {
      const conclusion = make("p"), more = make("p"), details = make("details", {}, make("summary", {}, "More about the policy"), more);
      const groups = make("div", {class: "scroll", tabindex: 0}), preferences = make("div", {class: "preferences"}), errors = make("div", {class: "errormap"});
      policy.append(make("h3", {class: "task"}, task), conclusion, details, groups, preferences, make("h4", {}, "Error of each permutation"), errors);
      let showPreferences = null, showErrors = null;
      return ({data, conclusion: sentence, details: sentences}, scales) => {
        setText(conclusion, sentence);
        setText(more, sentences.join(" "));
        details.hidden = !sentences.length;
        const table = groupTable(data, chosen());
        groups.hidden = table === null;
        showChanged(groups, table && table.rows, () => table === null ? [] : [table.element]);
        if (showPreferences === null) {
          showPreferences = showPolicy(preferences, data, scales, {chosen: chosen(), onChoose: (iteration) => { if (iteration !== at) choose(iteration); }, draw: (figure, chart) => zoomable(figure, chart, `zoom ${task}`)});
          showErrors = mapErrors(errors, data, chosen());
        } else {
          showPreferences(data, scales, chosen());
          showErrors(data, chosen());
        }
      };
    }

    slider.addEventListener("input", () => choose(Number(slider.value) === iterations.length - 1 ? null : iterations[Number(slider.value)]));

    const renewSolved = oneAtATime(async () => {
      const iteration = chosen();
      let answer;
      try { answer = await ask(address(`/api/solved/${pathOf(name)}`, {at: iteration === null ? null : String(iteration)})); } catch (error) { problem(solved, error); return; }
      if (answer.problem) { solved.replaceChildren(make("p", {class: "hint"}, answer.problem)); return; }
      const nearby = iteration === null || iteration === answer.iteration ? "" : `, the nearest of ${checkpoints.length} that are kept (log.keep_checkpoints keeps more)`;
      solved.replaceChildren(make("p", {class: "hint"}, `Puzzles solved by the checkpoint of iteration ${number.format(answer.iteration)}${nearby}:`),
        ...Object.values(answer.tasks).map((task) => make("div", {class: `puzzles ${task.layout}`}, ...task.samples.map(puzzle))));
    });

    async function renewPolicy() {
      const answer = await ask(`/api/policy/${pathOf(name)}`);
      if (answer.problem || !sections.size) { policy.replaceChildren(...answer.problem ? [make("p", {class: "hint"}, answer.problem)] : []); sections = new Map(); }
      tasks = answer.tasks || {};
      Object.values(tasks).forEach((task) => decodeErrors(task.data));
      iterations = [...new Set(Object.values(tasks).flatMap((task) => task.data.iterations))].sort((one, other) => one - other);
      showTime();
    }

    function showHead({row, verdict: judged}) {
      facts.hidden = false;
      showChanged(state, [row.state, row.message], () => [stateOf(row)]);
      for (const [column, value] of values) {
        setText(value, row[column] || "");
        value.parentElement.hidden = !row[column];
        value.parentElement.title = row.measured && row.measured[column] || "";
      }
      message.className = row.state === "stopped" ? "hint" : "message";
      message.hidden = !row.message;
      setText(message, row.message);
      verdict.hidden = judged === null || row.state === "training";
      if (judged !== null) { verdict.className = `verdict ${judged.change}`; setText(verdict, judged.sentences.join(" ")); }
    }

    async function renew() {
      const view = await ask(`/api/run/${pathOf(name)}`);
      showHead(view);
      showChanged(warnings, view.warnings, () => view.warnings.map((warning) => make("p", {}, warning)));
      curves.hidden = !view.charts.length;
      lines.hidden = !view.log.length;
      time.hidden = !view.orders;
      draw(view.charts);
      const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      showLines(log, view.log);
      if (atEnd) log.scrollTop = log.scrollHeight;
      if (!view.orders) return;
      // training logs a line more often than it validates
      if (JSON.stringify(view.policy) !== policyVersion) { await renewPolicy(); policyVersion = JSON.stringify(view.policy); }
      if (JSON.stringify(view.checkpoints) !== JSON.stringify(checkpoints)) { checkpoints = view.checkpoints; await renewSolved(); }
    }

    listen(async (versions) => {
      if (!(name in versions)) { problem(missing, new Error("There is no such run.")); return; }
      missing.replaceChildren();
      if (versions[name] === version) return;
      await renew();
      version = versions[name];
    });
  }

  // Appends new lines and removes the oldest, but none while text of them is selected.
  function showLines(element, lines) {
    const shown = [...element.children], texts = shown.map((line) => line.textContent);
    let old = 0;
    while (texts.slice(old).some((text, index) => text !== lines[index])) old++;
    const selection = getSelection();
    if (selection.isCollapsed || !element.contains(selection.anchorNode)) shown.slice(0, old).forEach((line) => line.remove());
    element.append(...lines.slice(shown.length - old).map((line) => make("span", {class: "line"}, line)));
  }

  // A table of what the policy samples from a validation on: probability, size and difficulty of each group.
  function groupTable(task, at) {
    const index = at === null ? task.iterations.length - 1 : nearest(task.iterations, at);
    const preferences = task.preferences[index], sizes = task.sizes[index], groups = task.groups[index];
    if (preferences === null) return null;
    const difficulty = (group) => {
      if (groups === null) return "";
      const errors = d3.range(groups.length).filter((permutation) => groups[permutation] === group).map((permutation) => task.errors[index * groups.length + permutation] / 100);
      return errors.length ? d3.mean(errors).toFixed(2) : "–";
    };
    const titles = ["group", "probability", "size", "× uniform", "mean error"];
    const rows = preferences.map((preference, group) => [(preference * sizes[group]).toFixed(3), sizes[group].toFixed(3), preference.toFixed(2), difficulty(group)]);
    const table = make("table", {class: "groups"},
      make("caption", {}, "The hardest group has the lowest median softmax ratio: the network's probability of the right permutation, relative to its strongest rival."),
      make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", {scope: "col"}, title)))),
      make("tbody", {}, ...rows.map((row, group) => make("tr", {}, make("th", {scope: "row"}, `${group + 1}${group === 0 ? ", the hardest" : ""}`), ...row.map((value) => make("td", {}, value))))));
    return {rows, element: table};
  }

  function puzzle(sample) {
    const figure = make("figure", {class: "puzzle"}, make("div", {class: "arrangements"}, ...Object.entries(sample.arrangements).map(([title, arrangement]) => {
      const parts = mosaic({columns: sample.columns, sample}, arrangement);
      if (title === "restored") [...parts.children].forEach((part, position) => part.classList.toggle("misplaced", arrangement[position] !== position));
      return make("div", {class: "arrangement"}, make("small", {}, title), parts);
    })), make("figcaption", {}, make("span", {class: "name"}, sample.name), " ", make("span", {class: sample.solved ? "right" : "wrong"}, sample.verdict)));
    setStrip(figure, {sample});
    return figure;
  }

  // ---- comparing runs

  function showCompare() {
    document.title = "Compare · unshuffle";
    const choice = make("fieldset", {class: "switch tools"}), grid = make("div", {class: "charts"}), options = make("div"), picks = make("div", {class: "tools"});
    for (const [axis, title] of [["iterations", "over iterations"], ["time", "over wall-clock time"], ["passes", "over forward passes"]]) {
      const radio = make("input", {type: "radio", name: "axis", value: axis});
      radio.checked = (query.get("axis") || "iterations") === axis;
      radio.addEventListener("change", () => {
        remember("axis", axis === "iterations" ? null : axis);
        for (const name of [...query.keys()]) if (name.startsWith("zoom ")) remember(name, null); // of another axis
        grid.replaceChildren();
        draw = chartGrid(grid);
        renew();
      });
      choice.append(make("label", {}, radio, title));
    }
    const seeds = make("input", {type: "checkbox", id: "seeds"});
    seeds.checked = query.get("seeds") === "mean";
    seeds.addEventListener("change", () => { remember("seeds", seeds.checked ? "mean" : null); renew(); });
    choice.append(make("label", {}, seeds, "mean ± std over seeds"));
    main.replaceChildren(make("h1", {}, "Compare"), make("p", {class: "hint"}, "Select runs; each has a colour. Hover over a curve, or touch it, to read its values, drag to zoom in, double-click to zoom out. ", keys()), picks, choice, options, grid);
    let draw = chartGrid(grid), known = [];
    const renew = oneAtATime(async () => {
      const chosen = query.getAll("run");
      showChanged(picks, known, () => known.map((name) => {
        const box = make("input", {type: "checkbox", "data-run": name});
        box.addEventListener("change", () => {
          remember("run", box.checked ? [...query.getAll("run"), name] : query.getAll("run").filter((other) => other !== name));
          renew();
        });
        return make("label", {}, box, name);
      }));
      for (const box of picks.querySelectorAll("input")) box.checked = chosen.includes(box.dataset.run);
      try {
        const view = await ask(address("/api/compare", {run: chosen, axis: query.get("axis"), seeds: query.get("seeds")}));
        draw(view.charts);
        showChanged(options, view.runs, () => [view.runs.length > 1 ? differences(view.runs) : make("p", {class: "hint"}, chosen.length ? "" : "No run is selected yet.")]);
      } catch (error) { shownBefore.delete(options); problem(options, error); }
    });
    let before = "";
    listen((versions) => {
      known = Object.keys(versions);
      const now = JSON.stringify([known, query.getAll("run").map((name) => versions[name])]);
      if (now !== before) { before = now; return renew(); }
    });
  }

  // Calls a function with the file that is chosen or dropped.
  const MAX_UPLOAD = 20e6; // bytes that the server accepts

  function takeFiles(input, area, accept, failed) {
    const take = (file) => { if (file.size <= MAX_UPLOAD) accept(file); else failed(new Error(`${file.name} has ${number.format(file.size / 1e6)} MB; at most ${MAX_UPLOAD / 1e6} MB can be sent.`)); };
    input.addEventListener("change", () => { if (input.files.length) take(input.files[0]); });
    for (const kind of ["dragover", "dragleave", "drop"]) {
      area.addEventListener(kind, (event) => {
        event.preventDefault();
        area.classList.toggle("over", kind === "dragover");
        if (kind === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
      });
    }
  }

  // ---- search

  function showSearch() {
    document.title = "Search · unshuffle";
    const chooser = (id, title) => { const select = make("select", {id}); return [select, make("label", {}, title, select)]; };
    const [data, dataLabel] = chooser("data", "Images"), [first, firstLabel] = chooser("first", "Backbone"), [second, secondLabel] = chooser("second", "Compare with");
    const file = make("input", {type: "file", accept: "image/*,video/*", id: "file"}), drop = make("div", {class: "drop"}, make("label", {for: "file"}, "Drop an image or a clip here, choose one, or click an image below: "), file);
    const progress = make("p", {class: "hint", role: "status"}), asked = make("div", {class: "query"}), sides = make("div", {class: "sides"}), items = make("div", {class: "items"}), filter = make("input", {type: "search", id: "text", placeholder: "text in the name"});
    main.replaceChildren(make("h1", {}, "Search"), make("p", {class: "hint"}, "The images that are most similar to one of yours, by the features of two backbones: 1 is the same image, 0 an unrelated one. Trained beside untrained shows what was learned."),
      make("div", {class: "tools"}, dataLabel, firstLabel, secondLabel), progress, drop, asked, sides, make("h2", {}, "Images of this folder"), make("div", {class: "tools"}, make("label", {}, "Filter", filter)), items);
    filter.value = query.get("text") || "";
    let image = null, item = query.get("item"), searched = "", again = null;
    const POLL = 15000; // ms: files may be added, and weights be trained further

    const weights = () => [...new Set([first.value, second.value])].filter(Boolean);
    const fill = (select, choices, chosen) => {
      if (select.options.length === choices.length) return;
      select.replaceChildren(...choices.map((choice) => make("option", {value: choice.id}, choice.title)));
      select.value = choices.some((choice) => choice.id === chosen) ? chosen : (choices[0] || {id: ""}).id;
    };

    const look = oneAtATime(async () => {
      clearTimeout(again);
      if (document.hidden) return;
      let building = [];
      try {
        const state = await ask(address("/api/search", {data: data.value || query.get("data"), weights: weights().length ? weights() : query.getAll("weights"), text: filter.value}));
        fill(data, state.datasets, state.data);
        fill(first, state.backbones, state.weights[0]);
        fill(second, state.backbones, state.weights[1]);
        if (!state.datasets.length) { progress.textContent = "There is no folder to search: give one with unshuffle serve --data FOLDER."; return; }
        building = state.indexes.filter((index) => !index.ready);
        setText(progress, building.map((index) => index.problem || `${index.title}: ${number.format(index.done)} of ${number.format(index.total)} images indexed`).join("; ")
          || `${number.format(state.items)} images; ${state.indexes.map((index) => index.description).join("; ")}`);
        showChanged(items, [state.data, state.names], () => state.names.map(([index, name]) => picture(index, name)));
        const wanted = JSON.stringify([state.data, state.identity, weights(), item, image && [image.name, image.size, image.lastModified]]);
        if (!building.length && searched !== wanted && (item !== null || image !== null)) { await search(); searched = wanted; }
      } catch (error) { problem(sides, error); }
      again = setTimeout(look, building.some((index) => !index.problem) ? 500 : POLL);
    });
    document.addEventListener("visibilitychange", look);

    function picture(index, name, similarity) {
      const button = make("button", {type: "button", "data-item": index, "aria-label": `neighbours of ${name}`}, make("img", {src: address("/api/search/picture", {data: data.value, item: index}), alt: name, title: name, loading: "lazy"}));
      button.addEventListener("click", () => { item = index; image = null; searched = ""; remember("item", index); look(); scrollTo({top: 0}); });
      if (similarity === undefined) return button;
      return make("div", {}, button, make("small", {}, make("span", {class: "name"}, name), make("b", {}, similarity.toFixed(2))));
    }

    async function search() {
      const answers = await Promise.all(weights().map((weight) => image === null
        ? ask(address("/api/search/item", {data: data.value, weights: weight, item}))
        : ask(address("/api/search/image", {data: data.value, weights: weight}), {method: "POST", body: image})));
      sides.replaceChildren(...answers.map((answer) => make("section", {"data-weights": answer.weights}, make("h2", {}, answer.title),
        make("div", {class: "found"}, ...answer.found.map((found) => picture(found.item, found.name, found.similarity))))));
      if (image === null) asked.replaceChildren(make("img", {src: address("/api/search/picture", {data: data.value, item}), alt: "the image that was asked for"}));
    }

    function take(chosen) {
      image = chosen;
      item = null;
      remember("item", null);
      asked.replaceChildren(make("small", {}, chosen.name));
      if (chosen.type.startsWith("image/")) {
        const reader = new FileReader();
        reader.onload = () => { if (image === chosen) asked.prepend(make("img", {src: reader.result, alt: chosen.name})); };
        reader.readAsDataURL(chosen);
      }
      searched = "";
      look();
    }

    takeFiles(file, drop, take, (error) => problem(sides, error));
    filter.addEventListener("input", () => { remember("text", filter.value); look(); });
    for (const select of [data, first, second]) {
      select.addEventListener("change", () => {
        if (select === data) { item = image = null; remember("item", null); sides.replaceChildren(); asked.replaceChildren(); }
        remember("data", data.value);
        remember("weights", [first.value, second.value]);
        look();
      });
    }
    look();
  }

  // ---- puzzles

  const ROUNDS = 5;

  function showPuzzle() {
    document.title = "Puzzle · unshuffle";
    const select = make("select", {id: "run"}), tasks = make("select", {id: "task"});
    const button = (text, id, kind = "") => make("button", {type: "button", class: `button ${kind}`, id}, text);
    const other = button("Another sample", "other"), shuffle = button("Another permutation", "shuffle"), askButton = button("Ask the network", "ask", "main"), race = button("You against the network", "race");
    const own = make("input", {type: "file", accept: "image/*,video/*", id: "own"}), drop = make("div", {class: "drop"}, make("label", {for: "own"}, "Or drop an image or a clip of your own here: "), own);
    const score = make("p", {class: "score", role: "status"}), clock = make("p", {class: "clock"}), boards = make("div", {class: "boards"}), hint = make("p", {class: "hint"});
    main.replaceChildren(make("h1", {}, "Puzzle"),
      make("p", {class: "hint"}, "This is what the network learns from: the tiles of an image, or the frames of a clip, are shuffled, and it has to say by which permutation. Ask it, or put them in order yourself: select two, one after the other, to swap them, or drag one onto another; with a finger, select it first. Arrow keys move between them."),
      make("div", {class: "tools"}, make("label", {}, "Run", select), make("label", {}, "Task", tasks), askButton, race, other, shuffle), score, clock, boards, hint, drop);
    let current = null, arrangement = [], selected = null, game = null, file = null;
    let sample = Number(query.get("sample") || 0), permutation = Number(query.get("permutation") || 0);

    // In a game only the board is used, and before anything is loaded only the list of runs.
    function enable() {
      select.disabled = game !== null || !select.options.length;
      for (const control of [tasks, askButton, other, shuffle, own]) control.disabled = game !== null || current === null;
      race.disabled = current === null || (game !== null && game.state === "loading");
      race.textContent = game === null ? "You against the network" : game.state === "over" ? "Next puzzle" : "Skip this puzzle";
    }

    // an image of one's own is sent once for each run and task, which take samples of different sizes
    async function load(send = false) {
      const path = address(`/api/puzzle/${pathOf(select.value)}`, {task: query.get("task"), sample: String(file === null || send ? sample : current.sample), permutation: String(permutation)});
      current = await ask(path, send ? {method: "POST", body: file} : {});
      arrangement = [...current.arrangement];
      selected = null;
      tasks.replaceChildren(...current.tasks.map((task) => make("option", {value: task}, task)));
      tasks.value = current.task;
      hint.textContent = `${file === null ? current.name : file.name}; network after ${number.format(current.iteration)} iterations, ${number.format(current.permutations)} permutations in Ψ.`;
      show();
    }

    // parts that look the same may be swapped
    const inPlace = (part, position) => current.looks[part] === current.looks[position];
    const isRight = (order) => order.every(inPlace);
    const noun = () => current.noun.replace(/s$/, "");

    function swap(first, second) {
      [arrangement[first], arrangement[second]] = [arrangement[second], arrangement[first]];
      selected = null;
      show();
      focus(second);
      if (game !== null && game.state === "playing" && isRight(arrangement)) finish();
    }

    const board = () => boards.querySelector(".board");
    const focus = (position) => board().children[position].focus({preventScroll: true});

    function tile(part, position) {
      const element = make("button", {type: "button", style: `--part: ${part}`, "aria-label": `${noun()} ${part + 1} at position ${position + 1}`, "aria-pressed": String(position === selected), "data-part": part, "data-position": position});
      element.addEventListener("click", () => {
        if (selected === null) { selected = position; show(); focus(position); }
        else if (selected === position) { selected = null; show(); focus(position); }
        else swap(selected, position);
      });
      element.addEventListener("keydown", (event) => {
        const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -current.columns, ArrowDown: current.columns};
        if (!(event.key in steps)) return;
        event.preventDefault();
        if (board().children[position + steps[event.key]]) focus(position + steps[event.key]);
      });
      element.addEventListener("pointerdown", (event) => {
        if (element.hasPointerCapture && element.hasPointerCapture(event.pointerId)) element.releasePointerCapture(event.pointerId);
        const ended = new AbortController();
        const end = () => {
          ended.abort();
          element.classList.remove("dragged");
          element.style.translate = "";
        };
        addEventListener("pointermove", (move) => {
          const [right, down] = [move.clientX - event.clientX, move.clientY - event.clientY];
          if (Math.hypot(right, down) < 4) return; // a click
          element.classList.add("dragged");
          element.style.translate = `${right}px ${down}px`;
        }, {signal: ended.signal});
        addEventListener("pointercancel", end, {signal: ended.signal}); // it became a scroll
        addEventListener("pointerup", (up) => {
          const target = document.elementFromPoint(up.clientX, up.clientY); // below the one that is dragged
          end();
          const onto = target && target.closest(".board button");
          if (onto && board().contains(onto) && onto !== element) swap(position, Number(onto.dataset.position));
        }, {signal: ended.signal});
      });
      return element;
    }

    function figure(title, element) {
      const result = make("figure", {}, make("figcaption", {}, title), element);
      setStrip(result, {sample: current});
      return result;
    }

    function show() {
      const grid = make("div", {class: "board", role: "group", "aria-label": current.noun, style: `--columns: ${current.columns}; --parts: ${arrangement.length}`}, ...arrangement.map(tile));
      boards.className = `boards ${current.columns === arrangement.length ? "strip" : ""}`;
      const title = isRight(arrangement) ? "In order" : game !== null ? "Put it back in order" : arrangement.every((part, position) => part === current.arrangement[position]) ? "Shuffled" : "Arranged by you";
      boards.replaceChildren(figure(title, grid));
    }

    async function answerOf(shown) {
      return ask(`/api/answer/${pathOf(select.value)}`, {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify({task: current.task, sample: current.sample, arrangement: shown})});
    }

    function showReconstruction(answer) {
      const parts = mosaic({columns: current.columns, sample: current}, answer.restored);
      [...parts.children].forEach((part, position) => part.classList.toggle("misplaced", !inPlace(answer.restored[position], position)));
      const result = figure("Restored by the network", parts);
      result.classList.add("restored");
      boards.querySelectorAll(".restored").forEach((old) => old.remove());
      boards.append(result);
    }

    const verdict = (answer) => {
      const count = answer.restored.length, wrong = answer.restored.filter((part, position) => !inPlace(part, position)).length;
      return `The network answers ${drawing.written(answer.predicted)} with probability ${answer.confidence.toFixed(2)}: ${wrong === 0 ? "right" : `${wrong} of ${count} ${current.noun} in the wrong place`}.${answer.in_set ? "" : " It cannot be right: this permutation is not in Ψ, the set that it chooses from."}`;
    };

    // Shows the problem, if there is one, and ends the game: the puzzle that it was about is not known.
    const guarded = (work) => async () => {
      try { await work(); } catch (error) {
        score.textContent = error.message;
        endGame();
      }
      enable();
    };
    askButton.addEventListener("click", guarded(async () => {
      const answer = await answerOf(arrangement);
      showReconstruction(answer);
      score.textContent = verdict(answer);
    }));

    // ---- the same puzzles for both, against the clock

    function endGame() {
      if (game !== null) clearInterval(game.timer);
      game = null;
      clock.textContent = "";
    }

    const seconds = (time) => `${time.toFixed(time < 1 ? 2 : 1)} s`;
    const tell = (one) => `${one.right ? "right" : "wrong"} in ${seconds(one.seconds)}`;
    const sum = (rounds) => ({right: rounds.filter((one) => one.right).length, seconds: d3.sum(rounds, (one) => one.seconds)});
    const winner = (you, network) => you.right > network.right || (you.right === network.right && you.right && you.seconds < network.seconds) ? "you win"
      : network.right > you.right || (network.right && network.seconds < you.seconds) ? "the network wins" : "nobody wins";

    const round = guarded(async () => {
      game.state = "loading";
      enable();
      leave();
      sample += 1;
      permutation += 7;
      await load();
      for (let more = 0; more < 5 && isRight(arrangement); more++) { sample += 1; permutation += 1; await load(); } // nothing to do
      const asked = performance.now();
      const answer = await answerOf(current.arrangement);
      game.network.push({right: isRight(answer.restored), seconds: (performance.now() - asked) / 1000, answer});
      game.state = "playing";
      game.begun = performance.now();
      game.timer = setInterval(() => setText(clock, seconds((performance.now() - game.begun) / 1000)), 100);
      score.textContent = `Round ${game.network.length} of ${ROUNDS}: the network has answered. Your turn.`;
    });

    function finish() {
      clearInterval(game.timer);
      const you = {right: isRight(arrangement), seconds: (performance.now() - game.begun) / 1000}, network = game.network[game.network.length - 1];
      clock.textContent = seconds(you.seconds);
      game.you.push(you);
      game.state = "over";
      const totals = [sum(game.you), sum(game.network)];
      const text = totals.map(({right, seconds: time}, index) => `${index ? "The network" : "You"}: ${right} of ${game.you.length} right in ${seconds(time)}.`).join(" ");
      const last = game.you.length === ROUNDS;
      score.textContent = `Round ${game.you.length} of ${ROUNDS}: you ${you.right ? tell(you) : "skipped it"}, the network ${tell(network)}; ${winner(you, network)}. ${text}${last ? ` In all, ${winner(...totals)}.` : ""}`;
      if (last) endGame();
      show();
      showReconstruction(network.answer);
      enable();
    }

    race.addEventListener("click", () => {
      if (game !== null && game.state === "playing") { finish(); return; }
      if (game === null) game = {you: [], network: [], state: "loading"};
      round();
    });
    const leave = () => { file = null; own.value = ""; };
    const renew = (send) => guarded(async () => {
      score.textContent = "";
      remember("sample", String(sample));
      remember("permutation", String(permutation));
      try { await load(send); } catch (error) { leave(); throw error; }
    })();
    // what was loaded is of another run or task
    const change = () => {
      const send = file !== null;
      sample = 0;
      current = null;
      boards.replaceChildren();
      hint.textContent = "";
      enable();
      renew(send);
    };
    takeFiles(own, drop, (chosen) => { if (!own.disabled) { file = chosen; renew(true); } }, (error) => { score.textContent = error.message; });
    other.addEventListener("click", () => { leave(); sample += 1; renew(false); });
    shuffle.addEventListener("click", () => { permutation += 1; renew(false); });
    tasks.addEventListener("change", () => { remember("task", tasks.value); change(); });
    select.addEventListener("change", () => { remember("run", select.value); remember("task", null); change(); });
    enable();
    guarded(async () => {
      const rows = (await ask("/api/runs")).runs.filter((row) => row.state !== "damaged"), asked = rows.find((row) => row.name === query.get("run"));
      const names = rows.filter((row) => !row.no_puzzles).map((row) => row.name);
      select.replaceChildren(...names.map((name) => make("option", {value: name}, name)));
      if (!rows.length) throw new Error("There are no runs yet.");
      if (asked && asked.no_puzzles) throw new Error(`${asked.name}: ${asked.no_puzzles}.`);
      if (!names.length) throw new Error(`No run has puzzles. ${rows[0].name}: ${rows[0].no_puzzles}.`);
      if (asked) select.value = asked.name;
      await load();
    })();
  }

  // ---- which page

  const pages = {"/": showRuns, "/compare": showCompare, "/search": showSearch, "/puzzle": showPuzzle};
  for (const link of document.querySelectorAll("nav a")) if (link.getAttribute("href") === location.pathname) link.setAttribute("aria-current", "page");
  try {
    const path = decodeURIComponent(location.pathname);
    if (path.startsWith("/run/")) showRun(path.slice("/run/".length)); else pages[path]();
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
    main.replaceChildren(make("h1", {}, "Run"), make("p", {class: "problem", role: "alert"}, "There is no such run."));
  }
})();
