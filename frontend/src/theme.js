// Light or dark: TensorBoard's own switch where the page runs inside it, the system's wish elsewhere.
// TensorBoard sends no signal, but marks its body with the class "dark-mode".

import { OWNERS } from "./step_parts.js";

/** Rules for the owners' colours: weak ones, so that the style sheet's hatching of straggler wait wins. */
function ownerStyle() {
  const colours = (/** @type {"light" | "dark"} */ theme) => [...OWNERS].map(([id, owner]) => `--${id}: ${owner[theme]};`).join(" ");
  const classes = [...OWNERS].map(([id, { ink }]) => `:where(.owner-${id}) { background: var(--${id}); } .part.owner-${id} { color: var(--${ink}); }`);
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`:root { ${colours("light")} } :root.dark { ${colours("dark")} } ${classes.join(" ")}`);
  return sheet;
}

/** @param {() => void} changed called after each change */
export function followTheme(changed) {
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, ownerStyle()];
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
