/**
 * A clankers client without dependencies: framing, requests and notifications.
 *
 *   const client = await Client.connect();
 *   await client.call("upsertMessage", { message: { id: "m1", sessionId: "s1", role: "user", textContent: "hello" } });
 *   const found = await client.call<{ hits: { snippet: string }[] }>("search", { query: "hello" });
 *   client.close();
 */
import { connect, type Socket } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";

type Reply = { id?: number; result?: unknown; error?: { code: number; message: string }; method?: string; params?: unknown };
type Waiting = { resolve: (result: unknown) => void; reject: (error: Error) => void };

const SEPARATOR = Buffer.from("\r\n\r\n");

export function socketPath(): string {
  const data = process.env.CLANKERS_DATA_PATH ?? join(homedir(), ".local", "share");
  return process.env.CLANKERS_SOCKET_PATH ?? join(data, "clankers", "dxta-clankers.sock");
}

export class Client {
  onNotification: (method: string, params: unknown) => void = () => {};
  private buffer = Buffer.alloc(0);
  private waiting = new Map<number, Waiting>();
  private nextId = 1;
  private socket: Socket;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (data: Buffer) => this.receive(data));
    socket.on("close", () => this.fail(new Error("the connection to clankersd was closed")));
    socket.on("error", (error: Error) => this.fail(error));
  }

  static connect(path: string = socketPath()): Promise<Client> {
    return new Promise((resolve, reject) => {
      const socket = connect(path, () => resolve(new Client(socket)));
      socket.once("error", reject);
    });
  }

  call<T>(method: string, params: object = {}): Promise<T> {
    const id = this.nextId++;
    const body = Buffer.from(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    this.socket.write(`Content-Length: ${body.length}\r\n\r\n`);
    this.socket.write(body);
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { resolve: resolve as (result: unknown) => void, reject });
    });
  }

  close(): void {
    this.socket.end();
  }

  private receive(data: Buffer): void {
    this.buffer = Buffer.concat([this.buffer, data]);
    for (;;) {
      const end = this.buffer.indexOf(SEPARATOR);
      if (end < 0) return;
      const length = Number(/content-length:\s*(\d+)/i.exec(this.buffer.subarray(0, end).toString())?.[1]);
      const start = end + SEPARATOR.length;
      if (this.buffer.length < start + length) return;
      this.handle(JSON.parse(this.buffer.subarray(start, start + length).toString()));
      this.buffer = this.buffer.subarray(start + length);
    }
  }

  private handle(reply: Reply): void {
    if (reply.method) return this.onNotification(reply.method, reply.params);
    const waiting = this.waiting.get(reply.id ?? -1);
    if (!waiting) return;
    this.waiting.delete(reply.id!);
    if (reply.error) waiting.reject(new Error(`${reply.error.message} (${reply.error.code})`));
    else waiting.resolve(reply.result);
  }

  private fail(error: Error): void {
    for (const waiting of this.waiting.values()) waiting.reject(error);
    this.waiting.clear();
  }
}
