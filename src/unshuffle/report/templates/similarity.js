"use strict";
// Every picture is in the data once, and is shown wherever its number stands.
const data = JSON.parse(document.getElementById("data").textContent);
const chosen = document.getElementById("chosen");

function figure(item, caption) {
  const result = document.createElement("figure"), button = document.createElement("button");
  const image = new Image(), text = document.createElement("figcaption"), name = document.createElement("span");
  button.dataset.item = image.dataset.item = item;
  image.src = data.pictures[item];
  image.alt = image.title = name.textContent = name.title = data.names[item];
  name.className = "name";
  button.append(image);
  text.append(name);
  if (caption !== undefined) {
    const value = document.createElement("b");
    value.textContent = caption.toFixed(2);
    text.append(" ", value);
  }
  result.append(button, text);
  return result;
}

function choose(item) {
  const others = document.createElement("div");
  others.className = "pictures";
  others.append(...data.nearest[item].map(([other, similarity]) => figure(other, similarity)));
  chosen.replaceChildren(figure(item), others);
  for (const button of document.querySelectorAll("#all button")) {
    button.setAttribute("aria-pressed", button.dataset.item === String(item));
  }
  enable();
}

// Of a large folder not all pictures have their neighbours on the page.
function enable() {
  for (const button of document.querySelectorAll("button[data-item]")) button.disabled = !(button.dataset.item in data.nearest);
}

for (const image of document.querySelectorAll("img[data-item]")) image.src = data.pictures[image.dataset.item];
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-item]");
  if (button === null || button.disabled) return;
  choose(button.dataset.item);
  chosen.scrollIntoView({ block: "nearest" });
});
choose(chosen.dataset.first);
