// Owns the question for the server's key: one dialog, however many requests wait for it.

const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key-input");
const problem = document.getElementById("key-problem");
let asked = null;

/** The key that a person gives. `reason` says what was wrong with the last one. */
export function askKey(reason) {
  asked ??= new Promise((resolve) => {
    problem.textContent = reason;
    problem.hidden = !reason;
    input.value = "";
    dialog.addEventListener("cancel", stay);
    dialog.addEventListener("close", () => {
      dialog.removeEventListener("cancel", stay);
      asked = null;
      resolve(input.value.trim());
      input.value = "";
    }, { once: true });
    dialog.showModal();
    input.focus();
  });
  return asked;
}

/** Without a key there is nothing behind the dialog. */
function stay(event) {
  event.preventDefault();
}
