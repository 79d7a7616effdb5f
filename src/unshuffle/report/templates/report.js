"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const {make} = drawing;

  // ---- neighbours

  function showNeighbours(element) {
    const neighbours = data.runs[Number(element.dataset.run)].neighbours;
    const features = Object.keys(neighbours.nearest);
    const count = neighbours.names.length, shown = Math.min(5, count);
    let feature = features[0];
    let queries = d3.range(shown).map((row) => Math.floor(row * count / shown));
    const picture = (index) => make("img", {src: neighbours.pictures[index], alt: neighbours.names[index], title: neighbours.names[index], loading: "eager"});
    const choose = make("fieldset", {class: "switch"});
    for (const name of features) {
      const radio = make("input", {type: "radio", name: `features-${element.dataset.run}`, value: name});
      radio.checked = name === feature;
      radio.addEventListener("change", () => { feature = name; show(); });
      choose.append(make("label", {}, radio, `by ${name}`));
    }
    const rows = make("div", {class: "neighbour-rows"});
    const gallery = make("div", {class: "gallery", tabindex: -1});

    function button(index, kind) {
      const press = make("button", {type: "button", class: kind, "aria-label": `neighbours of ${neighbours.names[index]}`}, picture(index));
      press.addEventListener("click", () => {
        queries = [index, ...queries.filter((query) => query !== index)].slice(0, shown);
        show();
      });
      return press;
    }

    function show() {
      rows.style.gridTemplateColumns = `minmax(0, 1fr) .1rem repeat(${neighbours.nearest[feature][0].length}, minmax(0, 1fr))`;
      rows.replaceChildren(...queries.flatMap((query) => [
        button(query, "query"), make("span"), ...neighbours.nearest[feature][query].map((index) => button(index, "")),
      ]));
    }

    for (let index = 0; index < count; index++) gallery.append(button(index, ""));
    element.append(make("div", {}, choose, rows), make("div", {}, make("p", {class: "under gallery-title"}, `All ${count} held-out images:`), gallery));
    show();
  }

  const taskOf = (element) => data.runs[Number(element.dataset.run)].tasks[element.dataset.task];
  const everyTask = data.runs.flatMap((run) => Object.values(run.tasks));
  const scales = drawing.scalesOf(everyTask);
  everyTask.forEach(drawing.decodeErrors);
  document.querySelectorAll("[data-chart]").forEach((figure) => drawing.drawChart(figure, data.charts[Number(figure.dataset.chart)]));
  document.querySelectorAll(".preferences").forEach((element) => { if (taskOf(element)) drawing.showPolicy(element, taskOf(element), scales); });
  document.querySelectorAll(".errormap").forEach((element) => { if (taskOf(element)) drawing.mapErrors(element, taskOf(element)); });
  document.querySelectorAll(".neighbours").forEach(showNeighbours);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
})();
