// Runs alone within the sandboxed page that shows Perfetto (plugin/perfetto_ui.py writes it there), before Perfetto
// does. That page has no origin, so no storage, no workers of its own address, and, by its policy, no network: the tab
// hands it Perfetto's files, the trace and the range through one port. What is missing is stood in for.

{
  /** @typedef {(address: unknown) => Promise<Blob>} Ask the file at an address within Perfetto's folder */

  // Perfetto takes for its folder what stands before the last slash of its script's address, which is that of a blob.
  /** @param {MessagePort} files */
  const asking = (files) => (/** @type {unknown} */ address) =>
    /** @type {Promise<Blob>} */ (
      new Promise((resolve, reject) => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = ({ data }) => (data ? resolve(data) : reject(new TypeError(`There is no ${address} here.`)));
        files.postMessage({ file: String(address).replace(/^blob:null\//, "") }, [port2]);
      })
    );

  /**
   * The beginning of each worker; as text, since it runs there. What is said to it waits for its script, and that for
   * the WebAssembly which it names, in the wide form where both are there and the browser has it: it is asked for
   * without waiting.
   */
  const inWorker = (/** @type {(files: MessagePort) => Ask} */ asking) => {
    /** @type {MessageEvent[]} */
    const waiting = [];
    self.onmessage = async (first) => {
      self.onmessage = (event) => waiting.push(event);
      const ask = asking(first.ports[0]);
      const script = await ask(first.data);
      const names = new Set(Array.from((await script.text()).matchAll(/"([\w-]+\.wasm)"/g), ([, name]) => name));
      const isWide = WebAssembly.validate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 5, 3, 1, 4, 0]));
      for (const name of [...names])
        if (name.includes("_memory64") && names.has(name.replace("_memory64", ""))) names.delete(isWide ? name.replace("_memory64", "") : name);
      const files = new Map(
        await Promise.all([...names].map(async (name) => /** @type {const} */ ([name, URL.createObjectURL(await ask(name))]))),
      );
      const { open } = XMLHttpRequest.prototype;
      XMLHttpRequest.prototype.open = function (/** @type {string} */ method, /** @type {string | URL} */ address, /** @type {any[]} */ ...more) {
        Reflect.apply(open, this, [method, files.get(String(address)) ?? address, ...more]);
      };
      self.onmessage = null;
      /** @type {any} */ (self).importScripts(URL.createObjectURL(script));
      for (const { data, ports } of waiting) self.dispatchEvent(new MessageEvent("message", { data, ports: [...ports] }));
    };
  };

  const { port1: tab, port2: itsEnd } = new MessageChannel();
  const ask = asking(tab);
  /** @param {string} name */
  const blobOf = async (name) => URL.createObjectURL(await ask(name));

  const Worker = window.Worker;
  const beginning = URL.createObjectURL(new Blob([`(${inWorker})(${asking})`], { type: "text/javascript" }));
  const stored = new Map();
  const storage = {
    getItem: (/** @type {string} */ key) => stored.get(key) ?? null,
    setItem: (/** @type {string} */ key, /** @type {unknown} */ value) => void stored.set(key, String(value)),
    removeItem: (/** @type {string} */ key) => void stored.delete(key),
    clear: () => stored.clear(),
  };
  for (const [name, value] of Object.entries({
    localStorage: storage,
    sessionStorage: storage,
    caches: undefined,
    fetch: async (/** @type {unknown} */ address) => new Response(await ask(address)),
    Worker: function (/** @type {string} */ address) {
      const worker = new Worker(beginning);
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = ({ data, ports }) => tab.postMessage(data, [...ports]);
      worker.postMessage(address, [port2]);
      return worker;
    },
  }))
    Object.defineProperty(window, name, { value, configurable: true });
  Reflect.deleteProperty(Navigator.prototype, "serviceWorker");
  // The policy that Perfetto sets itself is wider than the page's, but for blobs.
  Object.defineProperty(HTMLMetaElement.prototype, "httpEquiv", { set() {} });

  /** Perfetto's style sheet, with its fonts; its own element for it only tells when it is there. */
  const styled = async () => {
    const css = await (await ask("perfetto.css")).text();
    const names = [...new Set(Array.from(css.matchAll(/url\((assets\/[^)]+)\)/g), ([, name]) => name))];
    const fonts = new Map(await Promise.all(names.map(async (name) => /** @type {const} */ ([name, await blobOf(name)]))));
    const sheet = new Blob([css.replace(/url\((assets\/[^)]+)\)/g, (_, name) => `url(${fonts.get(name)})`)], { type: "text/css" });
    const address = URL.createObjectURL(sheet);
    const href = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(HTMLLinkElement.prototype, "href"));
    Object.defineProperty(HTMLLinkElement.prototype, "href", {
      ...href,
      set(value) {
        href.set?.call(this, /\/perfetto\.css$/.test(value) ? address : value);
      },
    });
  };

  /**
   * Once the trace is loaded, sort the ranks, which this Perfetto orders by their number of slices, and select the
   * evidence. This takes what Perfetto leaves open for its developers; where that is different, only this is missing.
   * @param {[string, string]} seen
   */
  const arrange = async ([start, end]) => {
    const page = /** @type {any} */ (window);
    while (!page.app?.trace || page.app.isLoadingTrace) await new Promise((done) => setTimeout(done, 100));
    const { engine, selection, workspaces } = page.app.trace;
    const workspace = workspaces.currentWorkspace;
    const number = (/** @type {any} */ { name }) => parseInt(name.slice("rank ".length), 10); // "rank 12 (node1) 13"
    const ranks = workspace.children.filter((/** @type {any} */ track) => /^rank \d/.test(track.name));
    ranks.sort((/** @type {any} */ a, /** @type {any} */ b) => number(a) - number(b));
    for (const track of ranks) workspace.addChildLast(track);
    const duration = BigInt(end) - BigInt(start);
    const found = await engine.query(`select id from slice where ts = ${BigInt(start)} and dur = ${duration} limit 1`);
    const row = found.maybeFirstRow({ id: 0 });
    if (row) selection.selectSqlEvent("slice", row.id);
  };

  // Perfetto trusts what its own origin says; its answers go to the tab.
  tab.onmessage = ({ data }) => {
    if (!data.arrange) return window.dispatchEvent(new MessageEvent("message", { data, source: parent, origin: window.origin }));
    const done = () => parent.postMessage("ARRANGED", "*");
    arrange(data.arrange).then(done, done);
  };

  parent.postMessage("PORT", "*", [itsEnd]);
  Promise.all([blobOf("frontend_bundle.js"), styled()]).then(([src]) => {
    document.head.append(Object.assign(document.createElement("script"), { src }));
  });
}
