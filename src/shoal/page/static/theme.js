// Runs before the first paint, so that a chosen theme does not flash.
"use strict";
try {
  const chosen = localStorage.getItem("shoal-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage may be forbidden; then the system's theme holds */ }
