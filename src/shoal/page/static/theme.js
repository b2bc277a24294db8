// Runs before the first paint, so that no theme flashes: the one that was chosen, or else the system's.
"use strict";
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const set = () => {
    let chosen = null;
    try { chosen = localStorage.getItem("shoal-theme"); } catch { /* storage may be forbidden */ }
    const known = chosen === "light" || chosen === "dark";
    document.documentElement.dataset.theme = known ? chosen : system.matches ? "dark" : "light";
  };
  set();
  system.addEventListener("change", () => { set(); dispatchEvent(new CustomEvent("themed")); });
}
