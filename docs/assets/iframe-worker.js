/* Search in pages that are opened from disk: browsers refuse workers there, so the worker's script runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((done) => (this.frame.onload = done));
      const reply = 'window.postMessage = (data) => parent.postMessage(data, "*");';
      this.frame.srcdoc = `<script>${reply}<\/script><script src="${url}"><\/script>`;
      document.body.append(this.frame);
      addEventListener("message", (event) => {
        if (event.source === this.frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
    }

    postMessage(data) {
      this.ready.then(() => {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
