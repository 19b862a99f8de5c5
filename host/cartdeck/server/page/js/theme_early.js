// Owns the theme before the first paint: what was chosen last, else what the system says. A plain script, for its time.
{
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* a browser that keeps nothing */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
