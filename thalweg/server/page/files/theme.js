// Before the first paint: the theme chosen earlier. Without one, the system's.
(() => {
  try {
    const theme = localStorage.getItem("thalweg.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage is off: the system's theme */ }
})();
