// Owns the images that go along with a message: chosen or pasted, shown small, taken out again.

import { element } from "../dom.js";
import { bytes } from "../format.js";
import { Problem } from "../http.js";

const MOST_BYTES = 16 * 1024 * 1024;
const MOST_IMAGES = 16;

/** {node, button, images(), clear(), put(images)}; images are {name, url}, each url holding the image itself. */
export function imageTray(input, problem) {
  const chosen = [];
  const files = element("input", { type: "file", accept: "image/*", multiple: true, class: "unseen", tabindex: "-1", "aria-hidden": "true" });
  const button = element("button", { type: "button", text: "Add an image", on: { click: () => files.click() } });
  const node = element("ul", { class: "tray plain", "aria-label": "Images to send", hidden: true });

  async function add(found) {
    for (const file of found) {
      if (!file.type.startsWith("image/")) {
        problem.show(new Problem({ message: `${file.name} is no image.`, remedy: "Choose a PNG, JPEG, WebP or GIF file." }));
      } else if (file.size > MOST_BYTES) {
        problem.show(new Problem({ message: `${file.name} has ${bytes(file.size)}; an image may have ${bytes(MOST_BYTES)}.`, remedy: "Make it smaller: models see a few hundred pixels." }));
      } else if (chosen.length < MOST_IMAGES) {
        chosen.push({ name: file.name, url: await dataUrl(file) });
      }
    }
    show();
  }

  function show() {
    node.hidden = chosen.length === 0;
    node.replaceChildren(...chosen.map((one) => element("li", {},
      element("img", { src: one.url, alt: one.name }),
      element("button", { type: "button", class: "quiet", text: "×", "aria-label": `Take ${one.name} out`, on: { click: () => {
        chosen.splice(chosen.indexOf(one), 1);
        show();
        input.focus();
      } } }))));
  }

  files.addEventListener("change", async () => {
    await add([...files.files]);
    files.value = "";
    input.focus();
  });
  input.addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files].filter((one) => one.type.startsWith("image/"));
    if (pasted.length === 0) return;
    event.preventDefault();
    add(pasted);
  });
  button.append(files);
  return {
    node,
    button,
    images: () => [...chosen],
    clear: () => {
      chosen.length = 0;
      show();
    },
    put: (images) => {
      chosen.push(...images.slice(0, MOST_IMAGES - chosen.length));
      show();
    },
  };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
