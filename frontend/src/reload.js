// TensorBoard's reload button, and its automatic reload: it tells plugins of it over a channel that they open.

/** @param {() => void} heard */
export function onReload(heard) {
  if (window.parent === window) return; // a report: nobody reloads it
  const { port1, port2 } = new MessageChannel();
  port1.addEventListener("message", ({ data }) => {
    const { type, id, isReply } = JSON.parse(data);
    if (isReply) return;
    port1.postMessage(JSON.stringify({ type, id, payload: null, error: null, isReply: true }));
    if (type === "experimental.DataReloaded") heard();
  });
  port1.start();
  window.parent.postMessage("experimental.bootstrap", window.origin, [port2]);
}
