"use strict";
(() => {
  const {make, number, drawChart, mosaic, setStrip, scalesOf, showPolicy, mapErrors, decodeErrors} = drawing;
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");

  // ---- the address holds the view

  const query = new URLSearchParams(location.search);

  function remember(name, values) {
    query.delete(name);
    for (const value of [values].flat()) if (value !== null && value !== "") query.append(name, value);
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  }

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

  // Calls a function with the versions of all runs, now and whenever one changes.
  function listen(changed) {
    const source = new EventSource("/api/events");
    source.onmessage = (event) => { connection.textContent = "live"; changed(JSON.parse(event.data)); };
    source.onerror = () => { connection.textContent = "the server does not answer"; };
    addEventListener("pagehide", () => source.close());
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

  const stateOf = (row) => make("span", {class: `state ${row.state}`, title: row.message}, row.state);

  // ---- charts that are renewed and keep their zoom

  function chartGrid(element) {
    const drawn = new Map();
    return (charts) => {
      for (const chart of charts) {
        if (drawn.has(chart.title)) { drawn.get(chart.title).update(chart); continue; }
        const figure = make("figure", {class: "chart"}, make("figcaption", {}, make("b", {}, chart.title), " ", make("span", {}, chart.unit), make("small", {}, chart.note)));
        element.append(figure);
        const name = `zoom ${chart.title}`;
        const object = drawChart(figure, chart, (range) => remember(name, range === null ? null : range.map((value) => value.toPrecision(6)).join("~")));
        drawn.set(chart.title, object);
        const stored = (query.get(name) || "").split("~").map(Number);
        if (stored.length === 2 && stored[0] < stored[1]) object.zoom(stored);
      }
      const titles = new Set(charts.map((chart) => chart.title));
      for (const title of drawn.keys()) if (!titles.has(title)) { drawn.delete(title); [...element.children].find((figure) => figure.querySelector("b").textContent === title).remove(); }
    };
  }

  // ---- the table of runs

  const COLUMNS = [
    ["name", "run", "folder of the run"],
    ["state", "state", "training, finished, stopped, stale (no sign of life for 30 seconds), failed or damaged"],
    ["preset", "preset", "options that the run began with"],
    ["tasks", "tasks", "what is learned: S the order of tiles, T the order of frames, R rotations, I instances"],
    ["data", "data", "images and videos that it is trained on"],
    ["progress", "progress", "iterations"],
    ["left", "time left", "at the recent speed, validations included"],
    ["speed", "speed", "training, without validations"],
    ["errors", "error", "fraction of held-out puzzles that the network gets wrong, of each task; close to 1 is chance"],
    ["retrieval", "retrieval", "how often the nearest neighbour of a labelled image has its class"],
  ];

  function showRuns() {
    document.title = "Runs · unshuffle";
    let rows = [];
    const filter = make("input", {type: "search", id: "filter", placeholder: "text in any column"});
    filter.value = query.get("filter") || "";
    const compare = make("a", {class: "button main", id: "compare"}, "Compare");
    const csv = make("a", {class: "button", id: "csv", download: "runs.csv"}, "CSV");
    const heads = make("tr", {role: "row"}, make("th", {role: "columnheader", scope: "col"}, "compare"));
    const body = make("tbody", {role: "rowgroup"});
    const none = make("p", {class: "hint"});
    const cell = (title, kind, ...content) => make("td", {role: "cell", "data-title": title, class: kind}, ...content);
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

    function show() {
      const kept = shown(), chosen = query.getAll("run");
      for (const head of heads.querySelectorAll("[data-column]")) {
        if (head.dataset.column === query.get("sort")) head.setAttribute("aria-sort", query.has("descending") ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      }
      const focused = document.activeElement && document.activeElement.dataset.run;
      body.replaceChildren(...kept.map((row) => {
        const box = make("input", {type: "checkbox", "aria-label": `compare ${row.name}`, "data-run": row.name});
        box.checked = chosen.includes(row.name);
        box.addEventListener("change", () => {
          remember("run", box.checked ? [...query.getAll("run"), row.name] : query.getAll("run").filter((name) => name !== row.name));
          show();
        });
        const bar = row.progress ? make("span", {class: "bar"}, make("i", {style: `width: ${100 * row.fraction}%`})) : "";
        const lines = (text) => text.split(", ").filter(Boolean).map((line) => make("span", {class: "line"}, line));
        return make("tr", {"data-name": row.name, role: "row"}, cell("compare", "", box),
          cell("run", "", make("a", {href: `/run/${pathOf(row.name)}`}, row.name)),
          cell("state", "", stateOf(row), row.message ? make("small", {class: "why", title: row.message}, row.message) : ""),
          cell("preset", "", row.preset), cell("tasks", "", row.tasks), cell("data", "", row.data), cell("progress", "tight", row.progress, bar),
          cell("time left", "tight", row.left), cell("speed", "tight", row.speed), cell("error", "tight", ...lines(row.errors)), cell("retrieval", "tight", row.retrieval));
      }));
      if (focused) { const box = body.querySelector(`[data-run=${CSS.escape(focused)}]`); if (box) box.focus(); }
      none.textContent = rows.length === 0 ? "There are no runs yet: start one with unshuffle pretrain." : kept.length === 0 ? "No run contains this text." : "";
      compare.href = address("/compare", {run: chosen});
      compare.textContent = chosen.length ? `Compare ${chosen.length} runs` : "Compare";
      csv.href = address("/api/runs.csv", {run: kept.map((row) => row.name)});
      const selected = rows.filter((row) => chosen.includes(row.name) && row.options);
      options.replaceChildren(...(selected.length > 1 ? [differences(selected.map((row) => ({name: row.name, options: row.options})))] : []));
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
    return make("div", {class: "scroll", tabindex: 0}, make("h2", {}, "Options in which they differ"), make("table", {class: "left", id: "differing"},
      make("thead", {}, make("tr", {}, make("th", {}, "option"), ...runs.map((run) => make("th", {scope: "col"}, run.colour ? make("i", {class: `dot ${run.colour}`}) : "", run.name)))),
      make("tbody", {}, ...differing.map((name) => make("tr", {}, make("th", {scope: "row"}, name), ...runs.map((run) => make("td", {class: "differs"}, run.options[name])))))));
  }

  // ---- one run

  function showRun(name) {
    document.title = `${name} · unshuffle`;
    const head = make("div"), warnings = make("div", {class: "warnings"}), grid = make("div", {class: "charts"});
    const policy = make("div", {id: "policy"}), solved = make("div", {id: "solved"}), log = make("pre", {class: "log", tabindex: 0, "aria-label": "the last lines of the log"});
    const slider = make("input", {type: "range", min: 0, max: 0, step: 1, id: "at", "aria-label": "iteration"}), label = make("output", {for: "at"});
    const time = make("section", {}, make("h2", {}, "Through time"),
      make("p", {class: "hint"}, "Move the slider: groups as they were then, and puzzles as the network of that checkpoint solved them."),
      make("div", {class: "slider"}, slider, label), solved, policy);
    main.replaceChildren(make("h1", {}, name), head, warnings,
      make("section", {}, make("h2", {}, "Curves"), make("p", {class: "hint"}, "Hover over a curve to read its values. Drag to zoom in, double-click to zoom out."), grid),
      time, make("section", {}, make("h2", {}, "Log"), log));
    const draw = chartGrid(grid);
    let at = query.has("at") ? Number(query.get("at")) : null, iterations = [], tasks = null, version = null;

    function choose(iteration) {
      at = iteration;
      remember("at", at === null ? null : String(at));
      showTime();
      renewSolved();
    }

    function showTime() {
      slider.max = Math.max(0, iterations.length - 1);
      const index = at === null ? iterations.length - 1 : d3.scan(iterations, (one, other) => Math.abs(one - at) - Math.abs(other - at));
      slider.value = Math.max(0, index);
      label.textContent = iterations.length ? `iteration ${number.format(iterations[Number(slider.value)])}${at === null ? ", the latest" : ""}` : "";
      if (tasks === null) return;
      const focused = policy.contains(document.activeElement) ? [...policy.querySelectorAll("input")].indexOf(document.activeElement) : -1;
      const data = Object.values(tasks).map((task) => task.data);
      const scales = scalesOf(data);
      policy.replaceChildren(...Object.entries(tasks).flatMap(([task, facts]) => {
        const preferences = make("div", {class: "preferences"}), errors = make("div", {class: "errormap"});
        showPolicy(preferences, facts.data, scales, at, (iteration) => { if (iteration !== at) choose(iteration); });
        mapErrors(errors, facts.data);
        return [make("h3", {class: "task"}, task), make("p", {}, facts.conclusion), facts.details.length ? make("details", {}, make("summary", {}, "More about the policy"), make("p", {}, facts.details.join(" "))) : "", groupTable(facts.data, at), preferences, make("h4", {}, "Error of each permutation"), errors];
      }));
      if (focused >= 0) { const again = policy.querySelectorAll("input")[focused]; if (again) again.focus(); }
    }

    slider.addEventListener("input", () => choose(Number(slider.value) === iterations.length - 1 ? null : iterations[Number(slider.value)]));

    const renewSolved = oneAtATime(async () => {
      let answer;
      try { answer = await ask(address(`/api/solved/${pathOf(name)}`, {until: at === null ? null : String(at)})); } catch (error) { problem(solved, error); return; }
      if (answer.problem) { solved.replaceChildren(make("p", {class: "hint"}, answer.problem)); return; }
      solved.replaceChildren(make("p", {class: "hint"}, `Puzzles after ${number.format(answer.iteration)} iterations, the nearest checkpoint that is kept:`),
        ...Object.values(answer.tasks).map((task) => make("div", {class: `puzzles ${task.layout}`}, ...task.samples.map(puzzle))));
    });

    const renewTime = oneAtATime(async () => {
      const answer = await ask(`/api/policy/${pathOf(name)}`);
      if (answer.problem) { policy.replaceChildren(make("p", {class: "hint"}, answer.problem)); return; }
      Object.values(answer.tasks).forEach((task) => decodeErrors(task.data));
      tasks = answer.tasks;
      iterations = [...new Set(Object.values(tasks).flatMap((task) => task.data.iterations))].sort((one, other) => one - other);
      showTime();
      if (at === null) renewSolved();
    });

    let sound = true;
    const renew = oneAtATime(async () => {
      const view = await ask(`/api/run/${pathOf(name)}`);
      const row = view.row;
      sound = row.state !== "damaged";
      const fact = (title, text) => text ? make("div", {}, make("span", {}, `${title} `), text) : "";
      head.replaceChildren(make("div", {class: "facts", role: "status"}, stateOf(row), fact("iteration", row.progress), fact("time left", row.left), fact("speed", row.speed),
        fact("errors", row.errors), fact("retrieval", row.retrieval), fact("preset", row.preset), fact("tasks", row.tasks), fact("data", row.data)),
        row.message && row.state !== "stopped" ? make("p", {class: "message"}, row.message) : row.message ? make("p", {class: "hint"}, row.message) : "",
        view.verdict && row.state !== "training" ? make("p", {class: `verdict ${view.verdict.change}`}, view.verdict.sentences.join(" ")) : "");
      warnings.replaceChildren(...view.warnings.map((warning) => make("p", {}, warning)));
      draw(view.charts);
      const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      log.textContent = view.log.join("\n");
      if (atEnd) log.scrollTop = log.scrollHeight;
    });

    let started = false;
    listen(async (versions) => {
      if (!(name in versions)) { problem(head, new Error("There is no such run.")); return; }
      if (versions[name] === version) return;
      version = versions[name];
      await renew();
      if (!sound) return;
      try { await renewTime(); } catch (error) { problem(policy, error); }
      if (!started) { started = true; if (at !== null) renewSolved(); }
    });
  }

  // What the policy samples from the chosen validation on: probability, size and difficulty of each group.
  function groupTable(task, at) {
    const index = at === null ? task.iterations.length - 1 : d3.scan(task.iterations, (one, other) => Math.abs(one - at) - Math.abs(other - at));
    const preferences = task.preferences[index], sizes = task.sizes[index], groups = task.groups[index];
    if (preferences === null) return "";
    const difficulty = (group) => {
      if (groups === null) return "";
      const errors = d3.range(groups.length).filter((permutation) => groups[permutation] === group).map((permutation) => task.errors[index * groups.length + permutation] / 100);
      return errors.length ? d3.mean(errors).toFixed(2) : "–";
    };
    return make("div", {class: "scroll", tabindex: 0}, make("table", {class: "groups"},
      make("thead", {}, make("tr", {}, ...["group", "probability", "size", "× uniform", "mean error"].map((title) => make("th", {scope: "col"}, title)))),
      make("tbody", {}, ...preferences.map((preference, group) => make("tr", {}, make("th", {scope: "row"}, `${group + 1}${group === 0 ? ", the hardest" : ""}`),
        make("td", {}, (preference * sizes[group]).toFixed(3)), make("td", {}, sizes[group].toFixed(3)), make("td", {}, preference.toFixed(2)), make("td", {}, difficulty(group)))))));
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
    main.replaceChildren(make("h1", {}, "Compare"), make("p", {class: "hint"}, "Select runs; each has a colour. Hover over a curve to read its values, drag to zoom in, double-click to zoom out."), picks, choice, options, grid);
    let draw = chartGrid(grid), known = [];
    const renew = oneAtATime(async () => {
      const chosen = query.getAll("run");
      picks.replaceChildren(...known.map((name) => {
        const box = make("input", {type: "checkbox", "data-run": name});
        box.checked = chosen.includes(name);
        box.addEventListener("change", () => { remember("run", box.checked ? [...chosen, name] : chosen.filter((other) => other !== name)); renew(); });
        return make("label", {}, box, name);
      }));
      try {
        const view = await ask(address("/api/compare", {run: chosen, axis: query.get("axis"), seeds: query.get("seeds")}));
        draw(view.charts);
        options.replaceChildren(view.runs.length > 1 ? differences(view.runs) : make("p", {class: "hint"}, chosen.length ? "" : "No run is selected yet."));
      } catch (error) { problem(options, error); }
    });
    let before = "";
    listen((versions) => {
      known = Object.keys(versions);
      const now = JSON.stringify([known, query.getAll("run").map((name) => versions[name])]);
      if (now !== before) { before = now; renew(); }
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
    const [data, dataLabel] = chooser("data", "Images"), [first, firstLabel] = chooser("first", "Backbone"), [second, secondLabel] = chooser("second", "beside");
    const file = make("input", {type: "file", accept: "image/*,video/*", id: "file"}), drop = make("div", {class: "drop"}, make("label", {for: "file"}, "Drop an image or a clip here, choose one, or click an image below: "), file);
    const progress = make("p", {class: "hint", role: "status"}), asked = make("div", {class: "query"}), sides = make("div", {class: "sides"}), items = make("div", {class: "items"});
    main.replaceChildren(make("h1", {}, "Search"), make("p", {class: "hint"}, "The images that are most similar to one of yours, by the features of two backbones: 1 is the same image, 0 an unrelated one. Trained beside untrained shows what was learned."),
      make("div", {class: "tools"}, dataLabel, firstLabel, secondLabel), progress, drop, asked, sides, make("h2", {}, "Images of this folder"), items);
    let image = null, item = query.has("item") ? Number(query.get("item")) : null, listed = "";

    const weights = () => [...new Set([first.value, second.value])].filter(Boolean);
    const fill = (select, choices, chosen) => {
      if (select.options.length === choices.length) return;
      select.replaceChildren(...choices.map((choice) => make("option", {value: choice.id}, choice.title)));
      select.value = choices.some((choice) => choice.id === chosen) ? chosen : (choices[0] || {id: ""}).id;
    };

    async function look() {
      const state = await ask(address("/api/search", {data: data.value || query.get("data"), weights: weights().length ? weights() : query.getAll("weights")}));
      fill(data, state.datasets, state.data);
      fill(first, state.backbones, state.weights[0]);
      fill(second, state.backbones, state.weights[1]);
      if (!state.datasets.length) { progress.textContent = "There is no folder to search: give one with unshuffle serve --data FOLDER."; return; }
      const building = state.indexes.filter((index) => !index.ready);
      progress.textContent = building.map((index) => index.problem || `${index.title}: ${number.format(index.done)} of ${number.format(index.total)} images indexed`).join("; ")
        || `${number.format(state.items)} images; ${state.indexes.map((index) => index.description).join("; ")}`;
      if (`${state.data} ${state.identity}` !== listed && state.items) {
        listed = `${state.data} ${state.identity}`;
        items.replaceChildren(...state.names.map(([index, name]) => picture(index, name)));
      }
      if (building.some((index) => !index.problem)) setTimeout(() => look().catch(failed), 500);
      else if (item !== null || image !== null) await search();
    }

    function picture(index, name, similarity) {
      const button = make("button", {type: "button", "data-item": index, "aria-label": `neighbours of ${name}`}, make("img", {src: address("/api/search/picture", {data: data.value, item: index}), alt: name, title: name, loading: "lazy"}));
      button.addEventListener("click", () => { item = index; image = null; remember("item", String(index)); search().catch(failed); scrollTo({top: 0}); });
      if (similarity === undefined) return button;
      return make("div", {}, button, make("small", {}, make("span", {class: "name"}, name), make("b", {}, similarity.toFixed(2))));
    }

    async function search() {
      const answers = await Promise.all(weights().map((weight) => image === null
        ? ask(address("/api/search/item", {data: data.value, weights: weight, item: String(item)}))
        : ask(address("/api/search/image", {data: data.value, weights: weight}), {method: "POST", body: image})));
      sides.replaceChildren(...answers.map((answer) => make("section", {"data-weights": answer.weights}, make("h2", {}, answer.title),
        make("div", {class: "found"}, ...answer.found.map((found) => picture(found.item, found.name, found.similarity))))));
      if (image === null) asked.replaceChildren(make("img", {src: address("/api/search/picture", {data: data.value, item: String(item)}), alt: "the image that was asked for"}));
    }

    function failed(error) { problem(sides, error); }

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
      search().catch(failed);
    }

    takeFiles(file, drop, take, failed);
    for (const select of [data, first, second]) {
      select.addEventListener("change", () => {
        if (select === data) { item = image = null; remember("item", null); sides.replaceChildren(); asked.replaceChildren(); }
        remember("data", data.value);
        remember("weights", [first.value, second.value]);
        look().catch(failed);
      });
    }
    look().catch(failed);
  }

  // ---- puzzles

  function showPuzzle() {
    document.title = "Puzzle · unshuffle";
    const select = make("select", {id: "run"}), tasks = make("select", {id: "task"});
    const button = (text, kind = "") => make("button", {type: "button", class: `button ${kind}`}, text);
    const other = button("Another sample"), shuffle = button("Another permutation"), askButton = button("Ask the network", "main"), race = button("You against the network");
    for (const [element, id] of [[other, "other"], [shuffle, "shuffle"], [askButton, "ask"], [race, "race"]]) element.id = id;
    const own = make("input", {type: "file", accept: "image/*,video/*", id: "own"}), drop = make("div", {class: "drop"}, make("label", {for: "own"}, "Or drop an image or a clip of your own here: "), own);
    const score = make("p", {class: "score", role: "status"}), boards = make("div", {class: "boards"}), hint = make("p", {class: "hint"});
    main.replaceChildren(make("h1", {}, "Puzzle"),
      make("p", {class: "hint"}, "This is what the network learns from: the tiles of an image, or the frames of a clip, are shuffled, and it has to say by which permutation. Ask it, or put them in order yourself: drag a part onto another one to swap them, or select two, one after the other."),
      make("div", {class: "tools"}, make("label", {}, "Run", select), make("label", {}, "Task", tasks), askButton, race, other, shuffle), score, boards, hint, drop);
    let current = null, arrangement = [], selected = null, game = null, file = null;
    let sample = Number(query.get("sample") || 0), permutation = Number(query.get("permutation") || 0);

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

    const solved = () => arrangement.every((part, position) => part === position);

    function swap(first, second) {
      [arrangement[first], arrangement[second]] = [arrangement[second], arrangement[first]];
      selected = null;
      show();
      board().children[second].focus();
      if (game !== null && solved()) finish(true);
    }

    const board = () => boards.querySelector(".board");

    function tile(part, position) {
      const element = make("button", {type: "button", style: `--part: ${part}`, "aria-label": `part ${part + 1} at position ${position + 1}`, "aria-pressed": String(position === selected), "data-position": position});
      element.addEventListener("click", () => {
        if (selected === null) { selected = position; show(); board().children[position].focus(); }
        else if (selected === position) { selected = null; show(); board().children[position].focus(); }
        else swap(selected, position);
      });
      element.addEventListener("pointerdown", (event) => {
        if (element.hasPointerCapture && element.hasPointerCapture(event.pointerId)) element.releasePointerCapture(event.pointerId);
        const drop = (end) => {
          const target = document.elementFromPoint(end.clientX, end.clientY);
          const onto = target && target.closest(".board button");
          if (onto && board().contains(onto) && onto !== element) swap(position, Number(onto.dataset.position));
        };
        addEventListener("pointerup", drop, {once: true});
      });
      return element;
    }

    function figure(title, element) {
      const result = make("figure", {}, make("figcaption", {}, title), element);
      setStrip(result, {sample: current});
      return result;
    }

    function show() {
      const grid = make("div", {class: "board", role: "group", "aria-label": "parts", style: `--columns: ${current.columns}; --parts: ${arrangement.length}`}, ...arrangement.map(tile));
      boards.className = `boards ${current.columns === arrangement.length ? "strip" : ""}`;
      boards.replaceChildren(figure(game !== null ? "Put it back in order" : arrangement.every((part, position) => part === current.arrangement[position]) ? "Shuffled" : solved() ? "In order" : "Arranged by you", grid));
    }

    async function answerOf(shown) {
      return ask(`/api/answer/${pathOf(select.value)}`, {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify({task: current.task, sample: current.sample, arrangement: shown})});
    }

    function reconstruction(answer) {
      const parts = mosaic({columns: current.columns, sample: current}, answer.restored);
      [...parts.children].forEach((part, position) => part.classList.toggle("misplaced", answer.restored[position] !== position));
      const result = figure("Restored by the network", parts);
      result.classList.add("restored");
      return result;
    }

    const verdict = (answer) => {
      const count = answer.restored.length, wrong = count - answer.correct;
      return `${wrong === 0 ? "Right" : `${wrong} of ${count} ${current.noun} in the wrong place`}; the network is ${(100 * answer.confidence).toFixed(0)} % sure of ${drawing.written(answer.predicted)}.${answer.in_set ? "" : " It cannot be right: this permutation is not in Ψ, the set that it chooses from."}`;
    };

    const guarded = (work) => async () => { try { await work(); } catch (error) { score.textContent = error.message; } };
    askButton.addEventListener("click", guarded(async () => {
      const answer = await answerOf(arrangement);
      boards.querySelectorAll(".restored").forEach((old) => old.remove());
      boards.append(reconstruction(answer));
      score.textContent = verdict(answer);
    }));

    // ---- the same puzzles for both, against the clock

    const ROUNDS = 5;
    async function round() {
      leave();
      sample += 1;
      permutation += 7;
      await load();
      game.begun = performance.now();
      const begun = performance.now();
      game.answer = await answerOf(current.arrangement);
      game.network.push({right: game.answer.correct === game.answer.restored.length, seconds: (performance.now() - begun) / 1000});
      score.textContent = `Round ${game.you.length + 1} of ${ROUNDS}: the network has answered. Your turn.`;
    }

    async function finish(right) {
      game.you.push({right, seconds: (performance.now() - game.begun) / 1000});
      const figures = (rounds) => `${rounds.filter((one) => one.right).length} of ${rounds.length} right in ${d3.sum(rounds, (one) => one.seconds).toFixed(1)} s`;
      const text = `You: ${figures(game.you)}. The network: ${figures(game.network)}.`;
      if (game.you.length === ROUNDS) {
        game = null;
        race.textContent = "You against the network";
        score.textContent = text;
        return;
      }
      await guarded(round)();
      score.textContent = `${text} ${score.textContent}`;
    }

    race.addEventListener("click", guarded(async () => {
      if (game !== null) { await finish(false); return; }
      game = {you: [], network: [], begun: 0};
      race.textContent = "Give up this one";
      await round();
    }));
    const leave = () => { file = null; own.value = ""; };
    const renew = (send) => guarded(async () => {
      score.textContent = "";
      remember("sample", String(sample));
      remember("permutation", String(permutation));
      try { await load(send); } catch (error) { leave(); throw error; }
    })();
    takeFiles(own, drop, (chosen) => { file = chosen; renew(true); }, (error) => { score.textContent = error.message; });
    other.addEventListener("click", () => { leave(); sample += 1; renew(false); });
    shuffle.addEventListener("click", () => { permutation += 1; renew(false); });
    tasks.addEventListener("change", () => { remember("task", tasks.value); sample = 0; renew(file !== null); });
    select.addEventListener("change", () => { remember("run", select.value); remember("task", null); sample = 0; renew(file !== null); });
    guarded(async () => {
      const names = (await ask("/api/runs")).runs.filter((row) => row.state !== "damaged").map((row) => row.name);
      if (!names.length) { score.textContent = "There are no runs yet."; return; }
      select.replaceChildren(...names.map((name) => make("option", {value: name}, name)));
      if (names.includes(query.get("run"))) select.value = query.get("run");
      await load();
    })();
  }

  // ---- which page

  const path = decodeURIComponent(location.pathname);
  const pages = {"/": showRuns, "/compare": showCompare, "/search": showSearch, "/puzzle": showPuzzle};
  for (const link of document.querySelectorAll("nav a")) if (link.getAttribute("href") === path) link.setAttribute("aria-current", "page");
  if (path.startsWith("/run/")) showRun(path.slice("/run/".length)); else pages[path]();
})();
