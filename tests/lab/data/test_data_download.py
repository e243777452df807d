import functools
import hashlib
import http.server
import socket
import threading

import numpy as np
import pytest
from data_files import IDX_STEMS, binary_batch, tiny_cifar, write_tar, write_tiny_mnist

from dessilbi.lab.data import DataError, load_dataset, places

pytest.importorskip("pooch")
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be compared with published ones")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; counts requests; ``cut`` ends a reply before its promised length."""

    requests: list[str] = []  # noqa: RUF012 - replaced for each server
    cut = ""

    def do_GET(self):
        self.requests.append(self.path)
        if self.cut and self.cut in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"half")
            return
        super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A local mirror of tiny sets, with a table of checksums that fits them."""
    root = tmp_path / "mirror"
    write_tiny_mnist(root / "mnist", compress=True)
    (root / "cifar10").mkdir()
    write_tar(
        root / "cifar10" / "cifar-10-binary.tar.gz",
        {f"cifar-10-batches-bin/{k}.bin": binary_batch(*v) for k, v in tiny_cifar().items()},
    )
    for name, files in (
        ("mnist", [f"{stem}.gz" for stem in IDX_STEMS]),
        ("cifar10", ["cifar-10-binary.tar.gz"]),
    ):
        md5 = {file: hashlib.md5((root / name / file).read_bytes()).hexdigest() for file in files}
        monkeypatch.setitem(places.SOURCES, name, places.SOURCES[name]._replace(md5=md5))
    handler = type("Mirror", (Handler,), {"requests": []})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=root)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("DESSILBI_MIRROR", f"http://127.0.0.1:{server.server_port}/")
    handler.root = root
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_mnist_is_fetched_once_into_the_named_folder(tmp_path, mirror, capsys):
    data = load_dataset("mnist", data_dir=tmp_path / "data", download=True)
    folder = tmp_path / "data" / "mnist"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{s}.gz" for s in IDX_STEMS)
    assert (len(data.train), len(data.test)) == (30, 10)
    assert mirror.requests == [f"/mnist/{stem}.gz" for stem in IDX_STEMS]
    said = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz" in said
    assert "38/38 bytes" in said
    load_dataset("mnist", data_dir=tmp_path / "data", download=True)
    load_dataset("mnist", data_dir=tmp_path / "data")
    assert len(mirror.requests) == 4


def test_without_a_folder_it_goes_to_the_environments_or_the_cache(tmp_path, mirror, monkeypatch):
    assert load_dataset("mnist", download=True).source == str(tmp_path / "cache/data/mnist")
    monkeypatch.setenv("DESSILBI_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("DESSILBI_DATA", str(tmp_path / "env"))
    assert load_dataset("mnist", download=True).source == str(tmp_path / "env" / "mnist")


def test_an_interrupted_download_continues_with_what_is_missing(tmp_path, mirror):
    load_dataset("mnist", data_dir=tmp_path, download=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    mirror.requests.clear()
    load_dataset("mnist", data_dir=tmp_path, download=True)
    assert mirror.requests == ["/mnist/t10k-labels-idx1-ubyte.gz"]


def test_cifar10_arrives_as_an_archive_and_is_read_in_place(tmp_path, mirror):
    data = load_dataset("cifar10", data_dir=tmp_path / "data", download=True)
    np.testing.assert_array_equal(
        data.test.images.numpy(), tiny_cifar()["test_batch"][0].reshape(-1, 3, 32, 32)
    )
    assert data.source == str(tmp_path / "data" / "cifar10" / "cifar-10-binary.tar.gz")


def assert_fails_cleanly(folder, match):
    with pytest.raises(DataError, match=match) as caught:
        load_dataset("mnist", data_dir=folder, download=True)
    message = str(caught.value)
    assert "http://127.0.0.1:" in message
    assert "train-images-idx3-ubyte.gz" in message
    assert "DESSILBI_MIRROR" in message
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_a_wrong_checksum(tmp_path, mirror):
    (mirror.root / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    assert_fails_cleanly(tmp_path / "data", "hash")


def test_a_file_that_is_not_there(tmp_path, mirror):
    (mirror.root / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    assert_fails_cleanly(tmp_path / "data", "404")


def test_a_reply_that_ends_early(tmp_path, mirror):
    mirror.cut = "train-images"
    assert_fails_cleanly(tmp_path / "data", "could not be fetched")


def test_a_refused_connection(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("DESSILBI_MIRROR", f"http://127.0.0.1:{port}")
    assert_fails_cleanly(tmp_path / "data", "refused")


def test_a_folder_that_cannot_be_made(tmp_path, mirror):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="could not be fetched to"):
        load_dataset("mnist", data_dir=tmp_path / "file" / "data", download=True)


def test_the_table_has_the_files_that_the_readers_look_for():
    assert list(places.SOURCES["fashion-mnist"].md5) == [f"{s}.gz" for s in IDX_STEMS]
    assert {len(md5) for source in places.SOURCES.values() for md5 in source.md5.values()} == {32}
