"""Send one event to clankers with the standard library only: python hook.py SESSION ROLE TEXT"""

import json
import os
import pathlib
import socket
import sys
import uuid

session, role, text = sys.argv[1:4]
event = {"id": str(uuid.uuid4()), "sessionId": session, "role": role, "textContent": text}
request = {"jsonrpc": "2.0", "id": 1, "method": "upsertMessage", "params": {"message": event}}
body = json.dumps(request).encode()
data = pathlib.Path(os.environ.get("CLANKERS_DATA_PATH") or pathlib.Path.home() / ".local/share")
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(str(data / "clankers/dxta-clankers.sock"))
    connection.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    print(connection.recv(65536).decode().partition("\r\n\r\n")[2])  # {"jsonrpc":"2.0","result":{"ok":true},"id":1}
