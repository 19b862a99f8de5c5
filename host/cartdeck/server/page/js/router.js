// Owns which view is shown: that of the address behind the #. It does not know what views show.

/** To the beginning of the view that is shown. */
export function focusTitle() {
  document.querySelector("main > section:not([hidden]) h1").focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

/** `views` by name: {show(), hide()}. Shows the one of the address now, and whenever it changes. */
export function startRouter(views) {
  const names = Object.keys(views);
  let shown = null;

  function go(isFirst) {
    const wanted = location.hash.replace(/^#\//, "");
    const name = names.includes(wanted) ? wanted : names[0];
    if (name === shown) {
      focusTitle();
      return;
    }
    if (shown !== null) {
      document.getElementById(`view-${shown}`).hidden = true;
      views[shown].hide?.();
    }
    shown = name;
    const section = document.getElementById(`view-${name}`);
    section.hidden = false;
    const title = section.querySelector("h1");
    document.title = `${title.textContent} · cartdeck`;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    views[name].show?.();
    if (!isFirst) focusTitle();
  }

  window.addEventListener("hashchange", () => go(false));
  go(true);
}
