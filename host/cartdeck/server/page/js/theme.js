// Owns the choice of the theme: as the system, light, dark, and round again. It does not know colours.

const CHOICES = ["auto", "light", "dark"];

export function startTheme(button) {
  const root = document.documentElement;
  const show = () => {
    button.textContent = `Theme: ${root.dataset.theme ?? "auto"}`;
  };
  const next = () => {
    const choice = CHOICES[(CHOICES.indexOf(root.dataset.theme ?? "auto") + 1) % CHOICES.length];
    if (choice === "auto") delete root.dataset.theme;
    else root.dataset.theme = choice;
    keep("theme", choice);
    show();
  };
  button.addEventListener("click", next);
  show();
  return next;
}

export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // a browser that keeps nothing: it holds until the page is closed
  }
}

export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
