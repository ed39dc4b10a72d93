"""A local Hub for tests: it answers the requests of `huggingface_hub` from memory, with faults on demand.

It speaks plain LFS, not xet: clients must set HF_HUB_DISABLE_XET. The address of stored files is another host name
(`localhost`) than that of the Hub (`127.0.0.1`), as on the real one, so that redirects and access tokens are treated
as there.
"""

import base64
import hashlib
import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from support.hub_state import LARGE, READER, TOKEN, Blob, Commit, Fault, Refusal, Repo, new_commit

KINDS = {"models": "model", "datasets": "dataset"}


class HubServer:
    """`with HubServer() as hub:` is a Hub at `hub.address`."""

    def __init__(self, part_size: int | None = None) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.part_size = part_size
        self.log: list[str] = []
        self.authorized: set[str] = set()
        """The hosts that a token was sent to: those named in the requests, of which only the Hub's is the Hub."""
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self.port = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.storage = f"http://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault_of(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.match, request):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def sent(self, pattern: str) -> list[str]:
        """The requests so far that match."""
        return [entry for entry in self.log if re.search(pattern, entry)]

    def put(self, name: str, files: dict[str, bytes], kind: str = "model", private: bool = False) -> str:
        """Make a repository, or add a commit to it, without any request; returns the commit."""
        repo = self.repos.setdefault((kind, name), Repo(private, [new_commit("initial commit", {}, 0)]))
        blobs = {path: Blob(content, path.endswith(LARGE)) for path, content in files.items()}
        repo.commits.append(new_commit("put", {**repo.head.files, **blobs}, len(repo.commits)))
        return repo.head.sha


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any
    routes: ClassVar[list[tuple[str, str, str]]] = [
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", r"/api/(models|datasets)/(.+?)/preupload/([^/]+)", "preupload"),
        ("POST", r"/api/(models|datasets)/(.+?)/commit/([^/]+)", "commit"),
        ("POST", r"/api/(models|datasets)/(.+?)/paths-info/([^/]+)", "paths_info"),
        ("GET", r"/api/(models|datasets)/(.+?)/tree/([^/]+)(?:/(.*))?", "tree"),
        ("GET", r"/api/(models|datasets)/(.+?)/refs", "refs"),
        ("GET", r"/api/(models|datasets)/(.+?)/revision/([^/]+)", "info"),
        ("GET", r"/api/(models|datasets)/([^/]+/[^/]+|[^/]+)", "info"),
        ("POST", r"/(datasets/)?(.+?)\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/storage/part/(\w+)/(\d+)", "put_part"),
        ("POST", r"/storage/complete/(\w+)", "complete"),
        ("POST", r"/storage/verify", "verify"),
        ("PUT", r"/storage/(\w+)", "put_object"),
        ("GET|HEAD", r"/storage/(\w+)", "get_object"),
        ("GET|HEAD", r"/(datasets/)?(.+?)/resolve/([^/]+)/(.+)", "resolve"),
    ]

    # ---- answers -----------------------------------------------------------------------------------------------------

    def log_message(self, *about: object) -> None:
        return None

    def handle_any(self) -> None:
        hub: HubServer = self.server.hub
        address = urlsplit(self.path)
        request = f"{self.command} {unquote(address.path)}"
        hub.log.append(request)
        if "Authorization" in self.headers or TOKEN in self.path:
            hub.authorized.add(self.headers.get("Host", "").partition(":")[0])
        self.query = parse_qs(address.query)
        self.fault = hub.fault_of(request)
        length = int(self.headers.get("Content-Length") or 0)
        if self.fault and self.fault.kind == "cut":
            self.rfile.read(length // 2)
            return self.hang_up()
        self.body = self.read_body(length)
        if self.fault and self.fault.kind == "slow":
            time.sleep(self.fault.seconds)
        if self.fault and self.fault.kind == "status":
            return self.answer({"error": self.fault.message}, self.fault.status, self.fault.headers)
        try:
            for methods, pattern, name in self.routes:
                match = re.fullmatch(pattern, unquote(address.path))
                if match and self.command in methods.split("|"):
                    return getattr(self, f"do_{name}")(hub, *match.groups())
            raise Refusal(404, f"no such address: {request}")
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            self.answer({"error": refusal.message}, refusal.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def read_body(self, length: int) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(length)
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send(content, status, {"Content-Type": "application/json", **(headers or {})})

    def send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        fault = self.fault.kind if self.fault else ""
        if fault == "lost":
            return self.hang_up()
        if fault == "corrupt" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        self.wfile.write(content[: len(content) // 2] if fault == "cut_body" else content)
        if fault == "cut_body":
            self.wfile.flush()
            self.hang_up()
        return None

    # ---- who may do what ---------------------------------------------------------------------------------------------

    def token(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if token and token not in (TOKEN, READER):
            raise Refusal(401, "Invalid credentials in Authorization header")
        return token or None

    def writing(self) -> None:
        token = self.token()
        if token is None:
            raise Refusal(401, "Invalid username or password.")
        if token != TOKEN:
            raise Refusal(403, f"you have read-only access with {token}")  # a server that leaks the token

    def repo(self, hub: HubServer, kind: str, name: str) -> Repo:
        token = self.token()
        repo = hub.repos.get((kind, name))
        if repo is None or (repo.private and token is None):
            raise Refusal(404 if token else 401, "Repository not found", "RepoNotFound")
        return repo

    def commit_at(self, hub: HubServer, kind: str, name: str, revision: str) -> Commit:
        commit = self.repo(hub, kind, name).at(revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # ---- requests ----------------------------------------------------------------------------------------------------

    def do_whoami(self, hub: HubServer) -> None:
        if self.token() is None:
            raise Refusal(401, "Invalid username or password.")
        self.answer({"type": "user", "name": "tester", "orgs": []})

    def do_create(self, hub: HubServer) -> None:
        self.writing()
        request = json.loads(self.body)
        name = f"{request.get('organization') or 'tester'}/{request['name']}"
        kind = request.get("type", "model")
        if (kind, name) in hub.repos:
            raise Refusal(409, "You already created this repo")
        private = request.get("private", False) or request.get("visibility") == "private"
        attributes = Blob(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", False)
        hub.repos[kind, name] = Repo(private, [new_commit("initial commit", {".gitattributes": attributes}, 0)])
        self.answer({"url": f"{hub.address}/{name}", "name": name})

    def do_validate(self, hub: HubServer) -> None:
        import yaml

        match = re.match(r"---\n(.*?)\n---", json.loads(self.body)["content"], re.DOTALL)
        data = yaml.safe_load(match[1]) if match else None
        if match and not isinstance(data, dict):
            return self.answer({"errors": [{"message": "metadata is no mapping"}], "warnings": []}, 400)
        if data and data.get("license") == "none of the known":
            return self.answer({"errors": [{"message": '"license" must be one of the list'}], "warnings": []}, 400)
        return self.answer({"errors": [], "warnings": []})

    def do_preupload(self, hub: HubServer, kinds: str, name: str, revision: str) -> None:
        self.writing()
        files = self.commit_at(hub, KINDS[kinds], name, revision).files
        answers = []
        for file in json.loads(self.body)["files"]:
            sample = base64.b64decode(file["sample"])
            large = file["path"].endswith(LARGE) or b"\0" in sample or file["size"] > 10_000_000
            known = files.get(file["path"])
            oid = (known.sha256 if known.is_large else known.git) if known else None
            mode = "lfs" if large else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": answers})

    def do_batch(self, hub: HubServer, datasets: str | None, name: str) -> None:
        self.writing()
        self.repo(hub, "dataset" if datasets else "model", name)
        answers: list[dict[str, Any]] = []
        for requested in json.loads(self.body)["objects"]:
            oid, size = requested["oid"], requested["size"]
            answers.append({"oid": oid, "size": size})
            if oid in hub.objects:
                continue
            upload: dict[str, Any] = {"href": f"{hub.storage}/storage/{oid}?X-Amz-Signature=verysecret"}
            if hub.part_size and size > hub.part_size:
                count = -(-size // hub.part_size)
                parts = {str(n): f"{hub.storage}/storage/part/{oid}/{n}" for n in range(1, count + 1)}
                upload = {
                    "href": f"{hub.address}/storage/complete/{oid}",
                    "header": {"chunk_size": str(hub.part_size), **parts},
                }
            answers[-1]["actions"] = {"upload": upload, "verify": {"href": f"{hub.address}/storage/verify"}}
        self.answer({"transfer": "basic", "objects": answers})

    def store(self, hub: HubServer, oid: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refusal(400, "the checksum does not match")
        hub.objects[oid] = content

    def do_put_object(self, hub: HubServer, oid: str) -> None:
        if "Authorization" in self.headers:
            raise Refusal(400, "a token was sent to the storage")
        self.store(hub, oid, self.body)
        self.send(b"")

    def do_put_part(self, hub: HubServer, oid: str, number: str) -> None:
        hub.parts[oid, int(number)] = self.body
        self.send(b"", headers={"ETag": hashlib.md5(self.body, usedforsecurity=False).hexdigest()})

    def do_complete(self, hub: HubServer, oid: str) -> None:
        numbers = [part["partNumber"] for part in json.loads(self.body)["parts"]]
        self.store(hub, oid, b"".join(hub.parts[oid, number] for number in numbers))
        self.answer({})

    def do_verify(self, hub: HubServer) -> None:
        self.writing()
        request = json.loads(self.body)
        if len(hub.objects.get(request["oid"], b"")) != request["size"]:
            raise Refusal(404, "the object is not there")
        self.answer({})

    def do_commit(self, hub: HubServer, kinds: str, name: str, revision: str) -> None:
        self.writing()
        repo = self.repo(hub, KINDS[kinds], name)
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        with hub.lock:
            if header.get("parentCommit") not in (None, repo.head.sha):
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            files = dict(repo.head.files)
            for line in lines[1:]:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                elif line["key"] == "lfsFile":
                    if value["oid"] not in hub.objects:
                        raise Refusal(400, f"{value['path']} was not uploaded")
                    files[value["path"]] = Blob(hub.objects[value["oid"]], True)
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
                else:
                    raise Refusal(400, f"unknown operation {line['key']}")
            repo.commits.append(new_commit(header["summary"], files, len(repo.commits)))
        sha = repo.head.sha
        self.answer({"success": True, "commitOid": sha, "commitUrl": f"{hub.address}/{name}/commit/{sha}"})

    def do_info(self, hub: HubServer, kinds: str, name: str, revision: str = "main") -> None:
        repo, commit = self.repo(hub, KINDS[kinds], name), self.commit_at(hub, KINDS[kinds], name, revision)
        siblings = [{"rfilename": path} for path in commit.files]
        self.answer({"id": name, "sha": commit.sha, "private": repo.private, "siblings": siblings, "tags": []})

    def do_refs(self, hub: HubServer, kinds: str, name: str) -> None:
        head = self.repo(hub, KINDS[kinds], name).head.sha
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": head}
        self.answer({"branches": [branch], "tags": [], "converts": []})

    def entry(self, path: str, blob: Blob) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": "file", "path": path, "size": len(blob.content), "oid": blob.git}
        if blob.is_large:
            fields["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": 130}
        return fields

    def do_tree(self, hub: HubServer, kinds: str, name: str, revision: str, under: str | None = None) -> None:
        files = self.commit_at(hub, KINDS[kinds], name, revision).files
        start = f"{under}/" if under else ""
        whole = self.query.get("recursive", [""])[0].lower() in ("true", "1")
        entries = []
        folders = set()
        for path, blob in sorted(files.items()):
            rest = path.removeprefix(start)
            if not path.startswith(start):
                continue
            if "/" in rest:
                folders.add(start + rest.split("/")[0])
            if whole or "/" not in rest:
                entries.append(self.entry(path, blob))
        if under and not entries and not folders:
            raise Refusal(404, f"{under} does not exist", "EntryNotFound")
        directories = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
        self.answer([*directories, *entries])

    def do_paths_info(self, hub: HubServer, kinds: str, name: str, revision: str) -> None:
        files = self.commit_at(hub, KINDS[kinds], name, revision).files
        text = self.body.decode()
        paths = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
        self.answer([self.entry(path, files[path]) for path in paths if path in files])

    def do_resolve(self, hub: HubServer, datasets: str | None, name: str, revision: str, path: str) -> None:
        commit = self.commit_at(hub, "dataset" if datasets else "model", name, revision)
        blob = commit.files.get(path)
        if blob is None:
            raise Refusal(404, f"{path} does not exist", "EntryNotFound")
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob.git}"', "Accept-Ranges": "bytes"}
        if not blob.is_large:
            return self.send_range(blob.content, headers)
        hub.objects.setdefault(blob.sha256, blob.content)
        headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
        return self.send(b"", 302, {**headers, "Location": f"{hub.storage}/storage/{blob.sha256}?X-Amz-Signature=s"})

    def do_get_object(self, hub: HubServer, oid: str) -> None:
        if "Authorization" in self.headers:
            raise Refusal(400, "a token was sent to the storage")
        if oid not in hub.objects:
            raise Refusal(403, "no such object")
        self.send_range(hub.objects[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    def send_range(self, content: bytes, headers: dict[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self.send(content, headers=headers)
        start, end = int(match[1]), int(match[2] or len(content) - 1)
        if start >= len(content):
            return self.send(b"", 416, {"Content-Range": f"bytes */{len(content)}"})
        part = content[start : end + 1]
        return self.send(part, 206, {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"})
