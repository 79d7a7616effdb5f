// The search runs in a worker, which browsers refuse to pages that are opened from the disk: here in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.scope = new Promise((resolve) => { frame.onload = () => resolve(frame.contentWindow); }).then(async (scope) => {
        scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        scope.importScripts = (...addresses) => Promise.all(addresses.map((each) => load(scope, each)));
        await load(scope, address);
        return scope;
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}

function load(scope, address) {
  return new Promise((resolve, reject) => {
    const script = scope.document.createElement("script");
    Object.assign(script, { src: address, onload: resolve, onerror: reject });
    scope.document.head.append(script);
  });
}
