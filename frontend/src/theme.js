// Light or dark: TensorBoard's own switch where the page runs inside it, the system's wish elsewhere.
// TensorBoard sends no signal, but marks its body with the class "dark-mode".

/** @param {() => void} changed called after each change */
export function followTheme(changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const host = hostBody();
  const apply = () => {
    const dark = host ? host.classList.contains("dark-mode") : system.matches;
    document.documentElement.classList.toggle("dark", dark);
    changed();
  };
  if (host) new MutationObserver(apply).observe(host, { attributes: true, attributeFilter: ["class"] });
  else system.addEventListener("change", apply);
  apply();
}

/** @returns {HTMLElement | null} the body of TensorBoard's page */
function hostBody() {
  try {
    return parent === window ? null : parent.document.body;
  } catch {
    return null; // framed by another origin
  }
}
