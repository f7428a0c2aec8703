"""`make static-model`: build the files of the static embedding model from a wheel of the package `wordllama`.

    python -m tests.platforms.static_model wordllama-….whl [FOLDER]

The wheel is read as a ZIP archive; none of its code runs. Its float16 token vectors become int8 codes with one float32
scale per token, which halves the size and changes a text's vector by less than one part in ten thousand (its cosine
with the original stays above 0.9999). The result is the same on every machine.
"""

import argparse
import hashlib
import json
import sys
import zipfile
from pathlib import Path

import numpy as np

from clankersd.embedders import static

WEIGHTS = "wordllama/weights/l2_supercat_256.safetensors"
TOKENIZER = "wordllama/tokenizers/l2_supercat_tokenizer_config.json"
LICENSE = ".dist-info/licenses/LICENSE"
SOURCE_SHA256 = {
    WEIGHTS: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    TOKENIZER: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
}
LARGEST_CODE = 127


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the static embedding model from a wheel of wordllama.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=static.FOLDER)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, content in build(given.wheel).items():
        (given.folder / name).write_bytes(content)
        sys.stdout.write(f"{hashlib.sha256(content).hexdigest()}  {len(content):>9,} bytes  {name}\n")


def build(wheel: Path) -> dict[str, bytes]:
    """Return the contents of the model's files by name."""
    with zipfile.ZipFile(wheel) as archive:
        sources = {name: archive.read(name) for name in SOURCE_SHA256}
        license_file = next(name for name in archive.namelist() if name.endswith(LICENSE))
        license_text = archive.read(license_file)
    for name, expected in SOURCE_SHA256.items():
        if hashlib.sha256(sources[name]).hexdigest() != expected:
            raise SystemExit(f"{name} in {wheel} is not the file this model is made from: use wordllama 0.4.0.post1")
    tokenizer = json.dumps(json.loads(sources[TOKENIZER]), ensure_ascii=False, separators=(",", ":"))
    return {
        static.WEIGHTS: quantise(sources[WEIGHTS]),
        static.TOKENIZER: tokenizer.encode(),
        "LICENSE": license_text,
    }


def quantise(safetensors: bytes) -> bytes:
    """Return a safetensors file with int8 codes and a float32 scale per row for the float16 table in `safetensors`."""
    header_size = int.from_bytes(safetensors[:8], "little")
    tensor = json.loads(safetensors[8 : 8 + header_size])["embedding.weight"]
    begin, end = tensor["data_offsets"]
    body = safetensors[8 + header_size :]
    table = np.frombuffer(body[begin:end], "<f2").reshape(tensor["shape"]).astype(np.float32)
    scales = np.abs(table).max(axis=1) / np.float32(LARGEST_CODE)
    codes = np.rint(table / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8)
    parts = {"scales": ("F32", scales.astype("<f4")), "codes": ("I8", codes)}
    header, data = {}, b""
    for name, (kind, numbers) in parts.items():
        raw = numbers.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(numbers.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


if __name__ == "__main__":
    main()
