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

  const POLL_MS = 25;

  /** @type {() => void} */
  let shown = () => {};
  /** Resolves once the evidence is shown. */
  const isShown = new Promise((/** @type {(value: void) => void} */ done) => (shown = done));

  const Worker = window.Worker;
  const beginning = URL.createObjectURL(new Blob([`(${inWorker})(${asking})`], { type: "text/javascript" }));
  /**
   * @param {unknown} address of its script
   * @param {Promise<void>} [after] its script is asked for then
   */
  const begun = (address, after) => {
    const worker = new Worker(beginning);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = async ({ data, ports }) => {
      if (after) await after;
      tab.postMessage(data, [...ports]);
    };
    worker.postMessage(address, [port2]);
    return worker;
  };
  // Perfetto's engine compiles 11 MB of WebAssembly. It begins beside the page's own script, and not after it; the one that
  // Perfetto keeps ready for a next trace begins when this one is shown, since it would take a core from it.
  const ENGINE = "engine_bundle.js";
  /** @type {Worker | null} */
  let first = begun(ENGINE);
  const engine = () => {
    const one = first ?? begun(ENGINE, isShown);
    first = null;
    return one;
  };

  // Plugins for what phones and kernels record. Each would ask the trace for it before anything is shown; a slice has none.
  const OFF = [
    ...["ClientServer", "Cujs", "Dmabuf", "Log", "LongBatteryTracing", "Network", "Perf", "PerfTraceCounters", "Startup"].map((name) => `com.android.Android${name}`),
    ...["Bluetooth", "ContainedTraces", "CpuPerUid", "DayExplorer", "GpuWorkPeriod", "LargeScreensPerf"].map((name) => `com.android.${name}`),
    ...["PinAndroidPerfMetrics", "PinSysUITracks", "SysUIWorkspace"].map((name) => `com.android.${name}`),
    ...["PixelCpmTrace", "PixelMemory"].map((name) => `com.google.${name}`),
    ...["CpuFreq", "CpuidleTimeInState", "EntityStateResidency", "Frames", "Ftrace", "GpuFreq", "HeapProfile"].map((name) => `dev.perfetto.${name}`),
    ...["InstrumentsSamplesProfile", "KernelTrackEvent", "LinuxPerf", "PowerRails", "Screenshots"].map((name) => `dev.perfetto.${name}`),
    ...["LinuxKernelSubsystems", "SuspendResumeLatency", "Wattson"].map((name) => `org.kernel.${name}`),
  ];
  const flags = Object.fromEntries(OFF.map((plugin) => [`plugin_${plugin}`, "OVERRIDE_FALSE"]));
  const stored = new Map([["perfettoFeatureFlags", JSON.stringify(flags)]]);
  const storage = {
    getItem: (/** @type {string} */ key) => stored.get(key) ?? null,
    setItem: (/** @type {string} */ key, /** @type {unknown} */ value) => void stored.set(key, String(value)),
    removeItem: (/** @type {string} */ key) => void stored.delete(key),
    clear: () => stored.clear(),
  };
  /** @type {Map<string, Response>} The trace that Perfetto keeps for when it is loaded anew, which is never. */
  const kept = new Map();
  const cache = {
    open: async () => cache,
    put: async (/** @type {string} */ key, /** @type {Response} */ response) => {
      kept.clear();
      kept.set(key, response);
    },
    match: async (/** @type {string} */ key) => kept.get(key)?.clone(),
    has: async () => false,
    keys: async () => [],
    delete: async (/** @type {string} */ key) => kept.delete(key),
  };
  for (const [name, value] of Object.entries({
    localStorage: storage,
    sessionStorage: storage,
    caches: cache,
    EventSource: class extends EventTarget {
      close() {}
    },
    fetch: async (/** @type {unknown} */ address) => new Response(await ask(address)),
    Worker: function (/** @type {string} */ address) {
      return String(address).endsWith(`/${ENGINE}`) ? engine() : begun(address);
    },
  }))
    Object.defineProperty(window, name, { value, configurable: true });
  Reflect.deleteProperty(Navigator.prototype, "serviceWorker");
  // The policy that Perfetto sets itself is wider than the page's, but for blobs.
  Object.defineProperty(HTMLMetaElement.prototype, "httpEquiv", { set() {} });

  // Pictures are asked for as files; a script from elsewhere, which says whether Google's staff looks, is not there.
  const pictures = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(HTMLImageElement.prototype, "src"));
  Object.defineProperty(HTMLImageElement.prototype, "src", {
    ...pictures,
    set(value) {
      const name = /\/(assets\/[\w.-]+)$/.exec(value)?.[1];
      if (name) blobOf(name).then((address) => pictures.set?.call(this, address), () => {});
      else pictures.set?.call(this, value);
    },
  });
  const scripts = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(HTMLScriptElement.prototype, "src"));
  Object.defineProperty(HTMLScriptElement.prototype, "src", {
    ...scripts,
    set(value) {
      if (String(value).startsWith("blob:")) scripts.set?.call(this, value);
      else setTimeout(() => this.dispatchEvent(new Event("error")));
    },
  });

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
   * Once the trace is loaded, sort the ranks, which this Perfetto orders by their number of slices, the one that the
   * evidence is of above all, and select the evidence. This takes what Perfetto leaves open for its developers; where that is different, only this is missing.
   * @param {[string, string]} seen
   * @param {number | null} first rank
   */
  const arrange = async ([start, end], first) => {
    const page = /** @type {any} */ (window);
    while (!page.app?.trace || page.app.isLoadingTrace) await new Promise((done) => setTimeout(done, POLL_MS));
    const { engine, selection, workspaces } = page.app.trace;
    const workspace = workspaces.currentWorkspace;
    const number = (/** @type {any} */ { name }) => parseInt(name.slice("rank ".length), 10); // "rank 12 (node1) 13"
    const ranks = workspace.children.filter((/** @type {any} */ track) => /^rank \d/.test(track.name));
    ranks.sort((/** @type {any} */ a, /** @type {any} */ b) => Number(number(b) === first) - Number(number(a) === first) || number(a) - number(b));
    for (const track of ranks) workspace.addChildLast(track);
    const duration = BigInt(end) - BigInt(start);
    const found = await engine.query(`select id from slice where ts = ${BigInt(start)} and dur = ${duration} limit 1`);
    const row = found.maybeFirstRow({ id: 0 });
    if (row) selection.selectSqlEvent("slice", row.id);
  };

  // Perfetto trusts what its own origin says; its answers go to the tab.
  tab.onmessage = ({ data }) => {
    if (!data.arrange) return window.dispatchEvent(new MessageEvent("message", { data, source: parent, origin: window.origin }));
    const done = () => {
      parent.postMessage("ARRANGED", "*");
      shown();
    };
    arrange(data.arrange, data.first).then(done, done);
  };

  parent.postMessage("PORT", "*", [itsEnd]);
  Promise.all([blobOf("frontend_bundle.js"), styled()]).then(([src]) => {
    document.head.append(Object.assign(document.createElement("script"), { src }));
  });
}
