"""A container image as an archive in OCI's layout: the program and nothing else. `podman load`, `skopeo` and `apptainer` read it."""

import hashlib
import json
import stat

from .common import Failed, File, packed, tar

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KIND = "application/vnd.oci.image."


def make(product):
    if product.glibc:
        raise Failed("the image holds nothing but the program, which needs a C library\nhint: give one that is linked statically")
    # Who runs it as another user than root has places to write: for the data directory, and, where commands are typed, for results.
    shared = stat.S_IFDIR | 0o1777
    tree = tar([File("nodectl", product.program, 0o755), File("tmp", b"", shared), File("work", b"", shared)], product.epoch)
    layer = packed(tree)
    architecture = _ARCHITECTURES[product.machine]
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": ["/nodectl"],
                "Cmd": ["--help"],
                # Of NVIDIA's runtime: what of the driver is put into a container.
                "Env": ["PATH=/", "HOME=/", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"],
                "WorkingDir": "/work",
            },
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tree).hexdigest()]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _KIND + "manifest.v1+json",
            "config": _described(_KIND + "config.v1+json", config),
            "layers": [_described(_KIND + "layer.v1.tar+gzip", layer)],
        }
    )
    entry = _described(_KIND + "manifest.v1+json", manifest)
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "nodectl:" + product.version}
    index = _json({"schemaVersion": 2, "mediaType": _KIND + "index.v1+json", "manifests": [entry]})
    blobs = [File("blobs/sha256/" + hashlib.sha256(blob).hexdigest(), blob) for blob in (config, layer, manifest)]
    files = sorted([*blobs, File("index.json", index), File("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')])
    return "nodectl-%s-oci-%s.tar" % (product.version, architecture), tar(files, product.epoch)


def _described(kind, blob):
    return {"mediaType": kind, "digest": "sha256:" + hashlib.sha256(blob).hexdigest(), "size": len(blob)}


def _json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
