"""The hash of a client's folder."""

from pathlib import Path

import pytest

from fairbed.wire import client_folder
from fairbed.wire.client_folder import ClientFolderError, folder_sha256


def folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        file = path / name.replace("__", "/")
        file = file.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_equal_folders_have_equal_hashes_and_a_changed_module_another(tmp_path: Path) -> None:
    first = folder(tmp_path / "a", client="x = 1", net__layers="y = 2")
    second = folder(tmp_path / "b", net__layers="y = 2", client="x = 1")
    assert folder_sha256(first) == folder_sha256(second)
    (second / "net" / "layers.py").write_text("y = 3")
    assert folder_sha256(first) != folder_sha256(second)


def test_a_moved_border_between_files_changes_the_hash(tmp_path: Path) -> None:
    assert folder_sha256(folder(tmp_path / "a", a="1", b="2")) != folder_sha256(
        folder(tmp_path / "b", a="12", b="")
    )


def test_caches_and_hidden_files_do_not_count(tmp_path: Path) -> None:
    code = folder(tmp_path, client="x = 1")
    before = folder_sha256(code)
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "client.pyc").write_bytes(b"1")
    (code / ".git").mkdir()
    (code / ".git" / "HEAD").write_text("main")
    assert folder_sha256(code) == before


def test_no_folder_and_too_much_code_have_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClientFolderError, match="must be a folder with the code of a client"):
        folder_sha256(tmp_path / "none")
    code = folder(tmp_path / "code", a="1" * 100, b="2")
    monkeypatch.setattr(client_folder, "MAX_BYTES", 100)
    with pytest.raises(ClientFolderError, match="at most 100 bytes"):
        folder_sha256(code)
    monkeypatch.setattr(client_folder, "MAX_FILES", 1)
    with pytest.raises(ClientFolderError, match="at most 1 files"):
        folder_sha256(code)
