"use strict";
// What the report and the live page draw: curves, maps, and samples in the order of a permutation.
const drawing = (() => {
  const tip = document.getElementById("tip");
  const number = new Intl.NumberFormat("en");

  // Texts are inserted as text nodes only: file names may contain HTML.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      // a strict content security policy forbids the attribute, but not the property
      if (name === "style") element.style.cssText = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const colour = (name) => `var(--${name})`;

  // A text that stays the same keeps what a reader has selected of it.
  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  // ---- tooltip

  function showTip(x, y, children) {
    tip.replaceChildren(...children);
    tip.hidden = false;
    const left = Math.min(x + 14, window.scrollX + document.documentElement.clientWidth - tip.offsetWidth - 6);
    tip.style.left = `${Math.max(window.scrollX + 6, left)}px`;
    tip.style.top = `${y + 16}px`;
  }

  const hideTip = () => { tip.hidden = true; };

  // ---- curves

  const HEIGHT = 260, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 38;

  let chartCount = 0;

  // Draws a chart into a figure; `update` replaces its data and keeps the zoom, `zoom` sets that, `onZoom` hears of it.
  function drawChart(figure, chart, onZoom = () => {}) {
    const clip = `clip-${chartCount++}`;
    const svg = d3.select(figure).append("svg").attr("role", "img").attr("tabindex", 0);
    const legend = make("div", {class: "legend"});
    figure.append(legend);
    let levels, last, top, bottom, range = null;
    let x, rule, pointed = null; // the axis, and where on it values are read
    let dragging = false, late = false; // what is new is drawn when the drag has ended

    function measure() {
      levels = Object.entries(chart.levels);
      const seen = new Set(), entries = [];
      for (const series of chart.series) {
        if (seen.has(series.group)) continue;
        seen.add(series.group);
        entries.push(make("span", {}, make("i", {style: `border-color: ${colour(series.colour)}`, class: series.dashed ? "dashed" : ""}), series.group));
      }
      for (const [name, level] of levels) {
        entries.push(make("span", {}, make("i", {class: "level"}), `${name} ${level.toFixed(chart.decimals)}`));
      }
      legend.replaceChildren(...entries);
      const ends = chart.series.map(({name, points}) => `${name} ${points[points.length - 1][1].toFixed(chart.decimals)} at ${number.format(points[points.length - 1][0])}`);
      svg.attr("aria-label", `${chart.title}, ${chart.unit}, over ${chart.axis}. Last values: ${ends.join("; ")}.`);
      last = d3.max(chart.series, (series) => d3.max(series.points, (point) => point[0])) || 1;
      const values = chart.series.flatMap((series) => [...series.points.map((point) => point[1]), ...series.band.flatMap((point) => [point[1], point[2]])]);
      const all = [...values, ...levels.map((level) => level[1])];
      const room = chart.from_zero ? 0 : Math.max(1, 0.08 * (d3.max(all) - d3.min(all)));
      top = chart.from_zero ? d3.max(all) * 1.02 || 1 : d3.max(all) + room;
      bottom = chart.from_zero ? Math.min(0, d3.min(values)) : d3.min(all) - room;
    }

    function zoom(chosen) {
      range = chosen;
      onZoom(range);
      draw();
    }

    function draw() {
      late = dragging;
      if (dragging) return;
      const width = Math.max(240, figure.clientWidth);
      x = d3.scaleLinear().domain(range || [0, last]).range([LEFT, width - RIGHT]);
      const ticks = x.ticks(Math.min(6, width / 90)).filter((tick) => chart.axis !== "iteration" || Number.isInteger(tick));
      const y = d3.scaleLinear().domain([bottom, top]).range([HEIGHT - BOTTOM, TOP]);
      svg.attr("viewBox", `0 0 ${width} ${HEIGHT}`);
      svg.selectAll("*").remove();
      svg.append("clipPath").attr("id", clip).append("rect")
        .attr("x", LEFT - 3).attr("y", 0).attr("width", width - LEFT - RIGHT + 6).attr("height", HEIGHT - BOTTOM + 3);
      svg.append("g").attr("class", "grid").selectAll("line").data(y.ticks(4)).enter().append("line")
        .attr("x1", LEFT).attr("x2", width - RIGHT).attr("y1", y).attr("y2", y);
      svg.append("g").attr("class", "axis").attr("transform", `translate(0, ${HEIGHT - BOTTOM})`)
        .call(d3.axisBottom(x).tickValues(ticks).tickFormat(number.format).tickSizeOuter(0));
      svg.append("g").attr("class", "axis").attr("transform", `translate(${LEFT}, 0)`).call(d3.axisLeft(y).ticks(4).tickSize(0).tickPadding(8));
      svg.append("text").attr("class", "axisname").attr("x", width - RIGHT).attr("y", HEIGHT - 4).text(chart.axis);
      const inside = svg.append("g").attr("clip-path", `url(#${clip})`);
      for (const [, level] of levels) {
        inside.append("line").attr("class", "level").attr("x1", LEFT).attr("x2", width - RIGHT).attr("y1", y(level)).attr("y2", y(level));
      }
      const line = d3.line().x((point) => x(point[0])).y((point) => y(point[1]));
      const area = d3.area().x((point) => x(point[0])).y0((point) => y(point[1])).y1((point) => y(point[2]));
      for (const series of chart.series) {
        if (series.band.length) inside.append("path").attr("class", "band").attr("d", area(series.band)).style("fill", colour(series.colour));
        inside.append("path").attr("class", series.dashed ? "curve dashed" : "curve").attr("d", line(series.points)).style("stroke", colour(series.colour));
        if (series.points.length <= 40) {
          inside.append("g").style("fill", colour(series.colour)).selectAll("circle").data(series.points).enter()
            .append("circle").attr("r", 2.6).attr("cx", (point) => x(point[0])).attr("cy", (point) => y(point[1]));
        }
      }
      rule = svg.append("line").attr("class", "rule").attr("y1", TOP).attr("y2", HEIGHT - BOTTOM).style("display", "none");
      showRule();
      // a finger scrolls the page and reads values; only a mouse and the keyboard zoom
      const brush = d3.brushX().extent([[LEFT, TOP], [width - RIGHT, HEIGHT - BOTTOM]]).filter(() => !d3.event.touches && !d3.event.button).on("start", () => { dragging = true; }).on("end", () => {
        dragging = false;
        if (d3.event.selection) { if (!zoomInto(d3.event.selection.map(x.invert))) draw(); }
        else if (late) draw();
      });
      const overlay = svg.append("g").call(brush);
      overlay.on("dblclick", () => zoom(null));
      overlay.on("mousemove touchstart touchmove", () => {
        const [pointer] = d3.event.touches ? d3.touches(svg.node())[0] : d3.mouse(svg.node());
        const event = d3.event.touches ? d3.event.touches[0] : d3.event;
        read(x.invert(pointer), event.pageX, event.pageY);
      });
      overlay.on("mouseleave", stopReading);
    }

    // Zooms unless nothing would be between the ends.
    function zoomInto([from, to]) {
      const few = chart.axis === "iteration" ? 1 : (to + from) / 1e6;
      if (to - from >= few) zoom(from <= 0 && to >= last ? null : [from, to]);
      return to - from >= few;
    }

    function showRule() {
      const shown = pointed !== null && pointed >= x.domain()[0] && pointed <= x.domain()[1];
      rule.style("display", shown ? null : "none").attr("x1", shown ? x(pointed) : 0).attr("x2", shown ? x(pointed) : 0);
    }

    function stopReading() {
      pointed = null;
      showRule();
      hideTip();
    }

    // Arrow keys read one point after the other, + and - zoom around what was read, Escape shows all.
    svg.node().addEventListener("keydown", (event) => {
      const [from, to] = x.domain(), step = {ArrowLeft: -1, ArrowRight: 1}[event.key], factor = {"+": 0.5, "-": 2}[event.key];
      if (step !== undefined) {
        const ats = [...new Set(chart.series.flatMap((series) => series.points.map((point) => point[0])))].filter((at) => at >= from && at <= to).sort(d3.ascending);
        if (!ats.length) return;
        const next = pointed === null ? (step > 0 ? 0 : ats.length - 1) : nearest(ats, pointed) + step;
        const at = ats[Math.max(0, Math.min(ats.length - 1, next))], box = svg.node().getBoundingClientRect();
        read(at, scrollX + box.left + x(at), scrollY + box.top + HEIGHT / 2);
      } else if (factor !== undefined) {
        const middle = pointed === null ? (from + to) / 2 : pointed, half = factor * (to - from) / 2;
        zoomInto([Math.max(0, middle - half), Math.min(last, middle + half)]);
      } else if (event.key === "Escape") {
        stopReading();
        zoom(null);
      } else return;
      event.preventDefault();
    });
    svg.node().addEventListener("blur", stopReading);

    function read(position, left, top) {
      const closest = (points) => d3.scan(points, (one, other) => Math.abs(one[0] - position) - Math.abs(other[0] - position));
      const rows = chart.series.map((series) => ({series, point: series.points[closest(series.points)]}));
      const at = pointed = rows[d3.scan(rows, (one, other) => Math.abs(one.point[0] - position) - Math.abs(other.point[0] - position))].point[0];
      showRule();
      showTip(left, top, [
        make("div", {}, `${chart.axis} ${number.format(at)}`),
        ...rows.map(({series, point}) => make("div", {}, make("i", {style: `background: ${colour(series.colour)}`}),
          `${series.name} ${point[1].toFixed(chart.decimals)}${point[0] === at ? "" : ` (at ${number.format(point[0])})`}`)),
      ]);
    }

    measure();
    draw();
    let width = figure.clientWidth;
    new ResizeObserver(() => {
      if (figure.clientWidth === width) return;
      width = figure.clientWidth;
      draw();
    }).observe(figure);
    return {zoom, update: (changed) => { chart = changed; measure(); draw(); }};
  }

  // ---- permuted samples

  function mosaic(task, permutation) {
    if (task.sample === null) return "";
    const parts = make("span", {class: "parts", role: "img", "aria-label": `parts in the order ${written(permutation)}`, style: `--columns: ${task.columns}; --rows: ${permutation.length / task.columns}; --parts: ${permutation.length}`});
    parts.append(...permutation.map((part) => make("i", {style: `--part: ${part}`})));
    return parts;
  }

  // The strip of all parts is a property of an element; all permutations below it are shown from that.
  function setStrip(element, task) {
    if (task.sample !== null) element.style.setProperty("--strip", `url("${task.sample.strip}")`);
  }

  const written = (permutation) => permutation.map((part) => part + 1).join(" ");

  // ---- maps: a canvas with one pixel per cell

  function drawMap(canvas, columns, rows, cell) {
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) image.data.set(cell(column, row), 4 * (row * columns + column));
    }
    context.putImageData(image, 0, 0);
  }

  // Colours of the page's style, whose opacity is the strength of a cell.
  function tinted(cell) {
    const style = getComputedStyle(document.documentElement);
    const colours = {};
    for (const name of ["more", "less"]) colours[name] = style.getPropertyValue(`--${name}`).split(",").map(Number);
    return (column, row) => {
      const [name, strength] = cell(column, row);
      return [...colours[name], 255 * strength];
    };
  }

  function viridis(value) {
    const {r, g, b} = d3.rgb(d3.interpolateViridis(value));
    return [r, g, b, 255];
  }

  const redraws = [];
  const redraw = () => redraws.forEach((draw) => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);

  function cellAt(canvas, event, columns, rows) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    const row = Math.floor((event.clientY - box.top) / box.height * rows);
    return [Math.max(0, Math.min(columns - 1, column)), Math.max(0, Math.min(rows - 1, row))];
  }

  // The index of the value that is nearest to another one.
  const nearest = (values, value) => d3.scan(values, (one, other) => Math.abs(one - value) - Math.abs(other - value));

  // ---- preferences of the policy

  // A preference of 1 is uniform sampling. Its logarithm is shown, on one scale for all maps of the page.
  const doublings = (preference) => preference > 0 ? Math.max(-2, Math.min(2, Math.log2(preference))) : -2;
  const filled = (task) => task.preferences.flatMap((row, index) => row === null ? [] : row.filter((_, group) => task.sizes[index][group] > 0));

  // Returns the largest values of all tasks of a page: its maps share their scales.
  function scalesOf(tasks) {
    const advantages = tasks.flatMap((task) => task.rollouts === null ? [] : task.rollouts.advantages.flatMap((row) => row === null ? [] : row));
    return {
      strongest: Math.max(Math.log2(1.25), d3.max(tasks.flatMap(filled), (preference) => Math.abs(doublings(preference))) || 0),
      largest: Math.max(1, d3.max(advantages, Math.abs) || 0),
    };
  }

  function key(name, label) {
    const colours = `linear-gradient(to ${name === "more" ? "right" : "left"}, transparent, rgb(var(--${name})))`;
    return make("span", {}, make("span", {class: "key", style: `background: ${colours}`}), label);
  }

  // `chosen` is the iteration of the slider, by default the last one; `onChoose` hears of another one, and `draw` draws
  // the chart. Returns a function that shows other values and keeps everything else.
  function showPolicy(element, task, scales, {chosen = null, onChoose = () => {}, draw = drawChart} = {}) {
    let chart = null, preferences = null;
    function update(task, scales, chosen) {
      setStrip(element, task);
      if (chart !== null) chart.update(task.difficulty);
      else if (task.difficulty.series.length) {
        const figure = make("figure", {class: "chart"}, make("figcaption", {}, make("b", {}, task.difficulty.title), " ", make("span", {}, task.difficulty.unit), make("small", {}, task.difficulty.note)));
        element.prepend(figure);
        chart = draw(figure, task.difficulty);
      }
      if (task.preferences.every((row) => row === null)) return;
      if (preferences === null) preferences = showPreferences(element, onChoose);
      preferences(task, scales, chosen);
    }
    update(task, scales, chosen);
    return update;
  }

  // One row per group, the hardest at the top, and one column per validation; null is a validation without groups.
  // `facts` returns the values, their keys, the colour of a value, and a description of a cell.
  function groupMap(name, facts) {
    const canvas = make("canvas", {role: "img", "aria-label": name});
    const needle = make("div", {class: "needle"}), keys = make("span");
    const labels = (left, right) => make("div", {class: "maplabels"}, make("span", {}, left), right);
    const map = make("div", {class: "map"},
      labels("hardest group", keys), make("div", {class: "stage"}, canvas, needle), labels("easiest group", make("span", {}, "training →")));
    let task, values, cell, describe, columns, rows;
    const at = (event) => cellAt(canvas, event, columns, rows);
    const has = (column, row) => values[column] !== null && row < values[column].length;
    const draw = () => drawMap(canvas, columns, rows, tinted((column, row) => has(column, row) ? cell(values[column][row]) : ["less", 0]));
    canvas.addEventListener("pointermove", (event) => {
      const [column, row] = at(event);
      if (!has(column, row)) { hideTip(); return; }
      showTip(event.pageX, event.pageY, [make("div", {}, `iteration ${number.format(task.iterations[column])}, group ${row + 1}`),
        make("div", {}, describe(column, row))]);
    });
    canvas.addEventListener("pointerleave", hideTip);
    redraws.push(() => { if (values) draw(); });
    function update(changed, scales) {
      let legend;
      task = changed;
      ({values, legend, cell, describe} = facts(task, scales));
      columns = values.length;
      rows = d3.max(values, (row) => row === null ? 0 : row.length);
      keys.replaceChildren(...legend);
      draw();
    }
    const select = (index) => Object.assign(needle.style, {left: `${index * 100 / columns}%`, width: `${100 / columns}%`});
    return {map, update, select, onSelect: (handler) => canvas.addEventListener("click", (event) => handler(at(event)[0]))};
  }

  const preferenceMap = () => groupMap("preference for each group over time", (task, {strongest}) => ({
    values: task.preferences,
    legend: [key("less", `${(2 ** -strongest).toFixed(2)} ×`), " ", key("more", `${(2 ** strongest).toFixed(2)} × uniform sampling`)],
    cell: (preference) => [preference >= 1 ? "more" : "less", Math.min(1, Math.abs(doublings(preference)) / strongest)],
    describe: (column, row) => (task.groups[column] === null ? "" : `${Math.round(task.sizes[column][row] * task.permutations.length)} permutations, `) +
      `${task.preferences[column][row].toFixed(2)} × uniform sampling`,
  }));

  // Advantages are in standard deviations between the rollouts; 0 is their mean.
  const signed = (value, decimals) => `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(decimals)}`;

  const advantageMap = () => groupMap("advantage of each group over time", (task, {largest}) => ({
    values: task.rollouts.advantages,
    legend: [key("less", signed(-largest, 2)), " ", key("more", `${signed(largest, 2)} std`)],
    cell: (advantage) => [advantage >= 0 ? "more" : "less", Math.abs(advantage) / largest],
    describe: (column, row) => `advantage ${signed(task.rollouts.advantages[column][row], 2)}: error ${task.rollouts.errors[column][row].toFixed(3)} after its rollout`,
  }));

  // Returns a function that shows a task.
  function showPreferences(element, onChoose) {
    const maps = [];
    const slider = make("input", {type: "range", min: 0, step: 1, "aria-label": "validation"});
    const label = make("output");
    const now = make("p", {class: "now"});
    const examples = make("div", {class: "examples"});
    let task = null;
    const add = (map, before, ...after) => {
      maps.push(map);
      map.onSelect((index) => { slider.value = index; choose(); });
      examples.before(make("div", {}, ...before, map.map, ...after));
    };
    element.append(examples);
    add(preferenceMap(), [], make("div", {class: "slider"}, slider, label), now);

    function update(changed, scales, chosen) {
      task = changed;
      if (task.rollouts !== null && maps.length === 1) add(advantageMap(), [make("h4", {}, "Advantage of each group, by the rollouts at each validation")]);
      examples.classList.add(task.layout);
      slider.max = task.iterations.length - 1;
      slider.value = chosen === null ? slider.max : nearest(task.iterations, chosen);
      maps.forEach((map) => map.update(task, scales));
      show();
    }

    function show() {
      const index = Number(slider.value);
      maps.forEach((map) => map.select(index));
      setText(label, `iteration ${number.format(task.iterations[index])}`);
      slider.setAttribute("aria-valuetext", label.textContent);
      const preferences = task.preferences[index];
      if (preferences === null) {
        setText(now, "The policy has not started: every permutation is equally likely.");
        examples.replaceChildren();
        return;
      }
      const sizes = task.sizes[index], groups = task.groups[index];
      const filled = d3.range(preferences.length).filter((group) => sizes[group] > 0);
      const most = filled[d3.scan(filled, (one, other) => preferences[other] - preferences[one])];
      const least = filled[d3.scan(filled, (one, other) => preferences[one] - preferences[other])];
      const reward = task.rewards[index];
      const equal = preferences[most].toFixed(2) === preferences[least].toFixed(2);
      const noun = groups === null ? "pairs" : "permutations";
      setText(now, (equal ? `From this iteration the ${noun} of all groups are equally likely.` : `From this iteration group ${most + 1} of ${preferences.length} (1 = hardest) is preferred: its ${noun} are ` +
        `${preferences[most].toFixed(2)} times as likely as with uniform sampling. The least preferred is group ${least + 1}, ${preferences[least].toFixed(2)} times.`) +
        (reward === null || reward === undefined ? "" : ` The reward of the episode that ended here is ${signed(reward, 4)}.`));
      if (groups !== null) examples.replaceChildren(...(equal ? [exampleSet("Hardest", filled[0]), exampleSet("Easiest", filled[filled.length - 1])]
        : [exampleSet("Preferred", most), exampleSet("Least preferred", least)]));

      function exampleSet(title, group) {
        const members = d3.range(groups.length).filter((permutation) => groups[permutation] === group);
        const set = make("div", {class: "set"});
        for (const member of members.slice(0, 3)) {
          const error = task.errors[index * groups.length + member] / 100;
          set.append(make("figure", {}, mosaic(task, task.permutations[member]),
            make("figcaption", {}, `${written(task.permutations[member])}, error ${error.toFixed(2)}`)));
        }
        return make("div", {}, make("h4", {}, `${title}: group ${group + 1}, ${members.length} permutation${members.length === 1 ? "" : "s"}`), set);
      }
    }

    function choose() {
      onChoose(Number(slider.value) === task.iterations.length - 1 ? null : task.iterations[Number(slider.value)]);
      show();
    }

    slider.addEventListener("input", choose);
    return update;
  }

  // ---- the error map

  // Shows the hardest permutation until another one is pointed at. Returns a function that shows other values.
  function mapErrors(element, task, chosen = null) {
    element.classList.add(`${task.layout}-map`);
    const canvas = make("canvas", {role: "img", tabindex: 0, "aria-label": "error of each permutation at each validation; arrow keys choose one"}), needle = make("div", {class: "needle"});
    const below = make("div", {class: "below"}), easiest = make("span"), last = make("span");
    const scale = make("span", {class: "scale", style: `background: linear-gradient(to right, ${d3.range(0, 1.01, 0.1).map(d3.interpolateViridis).join()})`});
    element.append(
      make("div", {class: "maplabels"}, make("span", {}, "hardest permutation"), make("span", {}, "error 0 ", scale, " 1")),
      make("div", {class: "stage"}, canvas, needle),
      make("div", {class: "maplabels"}, easiest, last),
      below,
    );
    let columns, rows, picked = null;
    const error = (column, row) => task.errors[column * rows + task.ranking[row]] / 100;

    function update(changed, chosen = null) {
      task = changed;
      columns = task.iterations.length;
      rows = task.permutations.length;
      setStrip(element, task);
      setText(easiest, `easiest permutation · iteration ${number.format(task.iterations[0])}`);
      setText(last, number.format(task.iterations[columns - 1]));
      drawMap(canvas, columns, rows, (column, row) => viridis(error(column, row)));
      needle.hidden = chosen === null;
      if (chosen !== null) Object.assign(needle.style, {left: `${nearest(task.iterations, chosen) * 100 / columns}%`, width: `${100 / columns}%`});
      if (picked === null) show(columns - 1, 0);
      else show(nearest(task.iterations, picked.iteration), task.ranking.indexOf(picked.permutation));
    }

    function show(column, row) {
      const permutation = task.permutations[task.ranking[row]];
      const last = column < columns - 1 ? `, ${error(columns - 1, row).toFixed(2)} at the last validation` : "";
      const text = `Permutation ${written(permutation)}: error ${error(column, row).toFixed(2)} at iteration ${number.format(task.iterations[column])}${last}. ` +
        `Rank ${row + 1} of ${rows}, the hardest first.`;
      if (below.textContent !== text) below.replaceChildren(mosaic(task, permutation), make("p", {}, text));
    }

    function pick(column, row) {
      picked = {permutation: task.ranking[row], iteration: task.iterations[column]};
      show(column, row);
    }

    for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => pick(...cellAt(canvas, event, columns, rows)));
    canvas.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const [column, row] = picked === null ? [columns - 1, 0] : [nearest(task.iterations, picked.iteration), task.ranking.indexOf(picked.permutation)];
      pick(Math.max(0, Math.min(columns - 1, column + step[0])), Math.max(0, Math.min(rows - 1, row + step[1])));
    });
    // read aloud while it is chosen by keys, and not with every validation
    canvas.addEventListener("focus", () => below.setAttribute("aria-live", "polite"));
    canvas.addEventListener("blur", () => below.removeAttribute("aria-live"));
    update(task, chosen);
    return update;
  }

  // One byte per error travels as base64.
  function decodeErrors(task) {
    task.errors = Uint8Array.from(atob(task.errors), (letter) => letter.charCodeAt(0));
  }

  return {make, number, setText, nearest, drawChart, mosaic, setStrip, written, scalesOf, showPolicy, mapErrors, decodeErrors};
})();
