// Runs the search's worker in a frame if the page is a file: browsers load no worker from files.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      const load = (source) =>
        new Promise((done) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = script.onerror = done;
          inside.document.head.append(script);
        });
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(new URL(source, url))), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
