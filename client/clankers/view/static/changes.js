// Follows the changes of the store. One tab holds the stream and passes its events to the others: a browser opens at
// most six connections to a server, and each stream would keep one. When that tab is closed, the next one takes over.

import { direct } from "./api.js";

const NAME = "clankers-changes";

/** Call `receive` with every event: `hello` and `away` say whether the daemon is there, `lost` that the view is not. */
export function followChanges(receive) {
  const channel = new BroadcastChannel(NAME);
  let last = null;
  let state = null;
  let leads = false;
  const take = (event) => {
    last = event.number ?? last;
    if (event.type !== "change") state = event.type === "reread" ? { type: "hello", connected: true } : event;
    receive(event);
  };
  const pass = (event) => {
    take(event);
    channel.postMessage(event);
  };
  channel.onmessage = ({ data }) => {
    if (data.type !== "ask") take(data);
    else if (leads && state) channel.postMessage(state);
  };
  const lead = () =>
    new Promise(() => {
      leads = true;
      const source = new EventSource(direct("/api/events", last ? { last } : {}));
      source.onmessage = ({ data, lastEventId }) => pass({ ...JSON.parse(data), number: lastEventId });
      source.onerror = () => pass({ type: "lost" });
    });
  navigator.locks.request(NAME, lead); // held until the tab is closed
  channel.postMessage({ type: "ask" });
}
