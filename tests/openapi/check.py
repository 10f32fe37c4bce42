"""Is the API what `openapi.json` says? First the document itself, then a node is asked what the document allows and what it does
not (schemathesis, from a fixed seed), over a door from TCP to its Unix socket.

    check.py NODECTL DATA_DIR DOCUMENT
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

from openapi_spec_validator import validate

# A pool is an upgrade to another protocol, `leave` ends the node, a measurement takes seconds of a GPU that is not there.
LEFT_OUT = ("/v1/pools", "/v1/leave", "/v1/devices/measure")
# No schema says that a placeholder names a parameter, or that a job has a command or a worker: such jobs are refused.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method"
)
LIMIT_S = 300


def carry_questions(client: socket.socket, node: socket.socket) -> None:
    """A node that answers before it has heard all hangs up; the rest is read all the same, or the answer would be lost with it."""
    hears = True
    with contextlib.suppress(OSError):
        while data := client.recv(65536):
            if hears:
                try:
                    node.sendall(data)
                except OSError:
                    hears = False
        node.shutdown(socket.SHUT_WR)


def carry_answers(node: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := node.recv(65536):
            client.sendall(data)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_WR)


def open_door(path: str) -> int:
    """A TCP port of this machine that leads to the socket at `path`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            node = socket.socket(socket.AF_UNIX)
            try:
                node.connect(path)
            except OSError:
                client.close()
                continue
            threading.Thread(target=carry_questions, args=(client, node), daemon=True).start()
            threading.Thread(target=carry_answers, args=(node, client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def main() -> int:
    nodectl, data_dir, document = sys.argv[1:]
    with open(document, encoding="utf-8") as file:
        validate(json.load(file))
    print("the document is valid")
    node = subprocess.Popen(
        [nodectl, "--data-dir", data_dir, "solo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        path = node.stdout.readline().strip()
        if not path:
            print("the node did not start")
            return 1
        port = open_door(path)
        left_out = [flag for path in LEFT_OUT for flag in ("--exclude-path", path)]
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/v1/openapi.json",
            "--checks", CHECKS, "--max-examples", "20", "--seed", "1", "--generation-deterministic",
            "--phases", "examples,coverage,fuzzing", "--request-timeout", "20", "--workers", "1", "--no-color",
            # A node that refuses a request before it has read its body may hang up after the answer.
            "--header", "Connection: close", *left_out,
        ]
        asked = subprocess.run(command, timeout=LIMIT_S, cwd=data_dir, env={**os.environ, "COLUMNS": "120"})
        if node.poll() is not None:
            print("the node has ended")
            return 1
        return asked.returncode
    finally:
        node.stdin.close()
        try:
            node.wait(30)
        except subprocess.TimeoutExpired:
            node.kill()


if __name__ == "__main__":
    sys.exit(main())
