// Owns the start of the page: the views, the connection, the keys. It does not know what any of them does.

import { announce } from "./announce.js";
import { live } from "./live.js";
import { startRouter } from "./router.js";
import { startShortcuts } from "./shortcuts.js";
import { startTheme } from "./theme.js";
import { callsView } from "./views/calls.js";
import { cartridgesView } from "./views/cartridges.js";
import { modelsView } from "./views/models.js";
import { plansView } from "./views/plans.js";
import { playgroundView } from "./views/playground.js";

const MAKERS = {
  cartridges: cartridgesView,
  models: modelsView,
  playground: playgroundView,
  plans: plansView,
  calls: callsView,
};
const LINK_TEXTS = { waiting: "connecting", open: "live", broken: "no connection, trying again", asleep: "paused" };

const views = Object.fromEntries(
  Object.entries(MAKERS).map(([name, make]) => [name, make(document.getElementById(`view-${name}`))]),
);
showLink();
startShortcuts(Object.keys(views), startTheme(document.getElementById("theme")));
startRouter(views);
live.start();

function showLink() {
  const node = document.getElementById("link-state");
  const text = document.getElementById("link-text");
  let wasBroken = false;
  live.addEventListener("link", () => {
    node.dataset.state = live.state;
    text.textContent = LINK_TEXTS[live.state];
    if (live.state === "broken") announce("The connection to the server is lost.");
    else if (live.state === "open" && wasBroken) announce("The connection to the server is back.");
    wasBroken = live.state === "broken" || (wasBroken && live.state !== "open");
  });
  live.addEventListener("state", () => {
    const version = live.server?.version ?? "";
    document.getElementById("version").textContent = version;
  });
}
