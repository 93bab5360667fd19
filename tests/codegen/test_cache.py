"""Object code on disk: what goes in comes out, or nothing does."""

import errno
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from wayfare.codegen.runtime import cache
from wayfare.codegen.runtime.cache import Store, key_of
from wayfare.codegen.runtime.cache_folder import Folder
from wayfare.core.config import Settings

KEY = key_of("a loop", "contiguous", "some processor")
posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "kernels", 10**6, tmp_path / "secret" / "kernels.key")


@pytest.fixture(autouse=True)
def warnings_are_errors():
    """And files that a test itself writes are private."""
    before = os.umask(0o077)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    os.umask(before)


def file_of(store, key=KEY):
    return store.folder / f"{key}.kernel"


def test_what_goes_in_comes_out(store):
    assert store.get(KEY) is None
    store.put(KEY, b"code\0\xff", {"name": "gelu", "source": "out = …"})
    assert store.get(KEY) == b"code\0\xff"
    assert Store(store.folder, 10**6, store.secret).get(KEY) == b"code\0\xff"
    store.put(KEY, b"", {})
    assert store.get(KEY) == b""


def test_entries_tell_what_the_files_are_about(store):
    store.put(KEY, b"x" * 100, {"name": "gelu", "source": "out = …"})
    (entry,) = store.entries()
    assert entry.key == KEY
    assert entry.about["name"] == "gelu" and entry.about["source"] == "out = …"
    assert entry.size == file_of(store).stat().st_size == store.size() > 100
    assert abs(entry.made - entry.used) < 60


def test_clear_removes_our_files_only(store):
    for number in range(3):
        store.put(key_of(str(number)), b"x", {})
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "abandoned-1-2.part").write_bytes(b"half")
    size = store.size()
    assert store.clear() == (4, size)
    assert [path.name for path in store.folder.iterdir()] == ["notes.txt"]
    assert store.clear() == (0, 0)


def test_keys_of_different_parts_differ():
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("a", "b", "c"), ("1:a",), ("1", "a")]
    assert len({key_of(*p) for p in parts}) == len(parts)
    assert key_of("ü", "\udc80") == key_of("ü", "\udc80")


@pytest.mark.parametrize("key", ["", "../evil", "a/b", "a.b", "a\0"])
def test_a_key_is_no_path(store, key):
    with pytest.raises(ValueError, match="letters and digits"):
        store.get(key)
    with pytest.raises(ValueError, match="letters and digits"):
        store.put(key, b"x", {})


# -- damage --------------------------------------------------------------------------------------------------------


def content(store):
    store.put(KEY, bytes(range(200)), {"name": "gelu"})
    return file_of(store).read_bytes()


@pytest.mark.parametrize("length", [0, 1, 15, 16, 40, 63, 64, 70, 100, -1])
def test_a_truncated_file_is_deleted(store, length):
    whole = content(store)
    file_of(store).write_bytes(whole[:length])
    assert store.get(KEY) is None
    assert not file_of(store).exists()


def test_a_flipped_bit_anywhere_is_found(store):
    whole = content(store)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        file_of(store).write_bytes(damaged)
        assert store.get(KEY) is None, f"byte {place}"
        assert not file_of(store).exists()


@pytest.mark.parametrize("other", [b"hello", b"\x7fELF" + bytes(500), b"WAYFARE-KERNEL\0\0" + b"\xff" * 200])
def test_a_foreign_file_is_deleted_and_not_listed(store, other):
    content(store)
    file_of(store).write_bytes(other)
    assert store.entries() == []
    assert store.get(KEY) is None
    assert not file_of(store).exists()


def test_something_behind_the_end_is_found(store):
    whole = content(store)
    file_of(store).write_bytes(whole + b"x")
    assert store.get(KEY) is None


def test_a_file_under_another_key_is_not_taken_for_it(store):
    content(store)
    other = key_of("another loop")
    os.rename(file_of(store), file_of(store, other))
    assert store.get(other) is None


def test_after_damage_the_file_is_made_again(store):
    content(store)
    file_of(store).write_bytes(b"")
    assert store.get(KEY) is None
    store.put(KEY, b"again", {})
    assert store.get(KEY) == b"again"


# -- trust ---------------------------------------------------------------------------------------------------------


@posix
def test_folder_and_files_are_the_owners_alone(store):
    before = os.umask(0)
    try:
        store.put(KEY, b"x", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file_of(store).stat().st_mode) == 0o600


@posix
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(store, mode):
    store.put(KEY, b"x", {})
    store.folder.chmod(mode)
    with pytest.warns(UserWarning, match="written by others.*chmod go-w"):
        assert store.get(KEY) is None
    store.put(key_of("another"), b"y", {})  # no second warning, no file
    assert len(list(store.folder.iterdir())) == 1


@posix
def test_a_file_that_others_can_write_is_refused(store):
    store.put(KEY, b"x", {})
    file_of(store).chmod(0o666)
    with pytest.warns(UserWarning, match="only you can write"):
        assert store.get(KEY) is None
    store.put(KEY, b"y", {})
    assert store.get(KEY) == b"y"


@posix
def test_somebody_elses_folder_is_refused(store, monkeypatch):
    store.put(KEY, b"x", {})
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert store.get(KEY) is None


@posix
def test_a_link_is_not_followed_and_not_written_through(store, tmp_path):
    store.put(KEY, b"x", {})
    target = tmp_path / "target"
    os.rename(file_of(store), target)
    before = target.read_bytes()
    file_of(store).symlink_to(target)
    with pytest.warns(UserWarning, match="is not loaded"):
        assert store.get(KEY) is None
    store.put(KEY, b"y", {})
    assert store.get(KEY) == b"y" and not file_of(store).is_symlink()
    assert target.read_bytes() == before


@posix
def test_a_pipe_under_the_name_does_not_hang(store):
    store.put(KEY, b"x", {})
    file_of(store).unlink()
    os.mkfifo(file_of(store))
    with pytest.warns(UserWarning, match="plain file"):
        assert store.get(KEY) is None


# -- disks that do not work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_cannot_be_written_is_one_warning(store, monkeypatch, number):
    store.put(KEY, b"old", {})

    write = Folder.write

    def fail(folder, name, content):
        write(folder, name, content[:10])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Folder, "write", fail)
    with pytest.warns(UserWarning, match="cannot write") as seen:
        for number in range(5):
            store.put(key_of(str(number)), b"new", {})
    assert len(seen) == 1
    assert store.get(KEY) == b"old"  # what is there is still used
    assert [path.name for path in store.folder.iterdir()] == [file_of(store).name]


def test_a_cache_that_is_cleared_during_a_write_goes_on(store, monkeypatch):
    store.put(key_of("another"), b"x", {})  # there is a secret now: what is written next is the kernel
    write = Folder.write

    def write_and_lose(folder, name, content):
        write(folder, name, content)
        monkeypatch.undo()
        Store(store.folder, 10**6).clear()

    monkeypatch.setattr(Folder, "write", write_and_lose)
    store.put(KEY, b"x", {})
    assert store.get(KEY) is None
    store.put(KEY, b"y", {})
    assert store.get(KEY) == b"y"


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "kernels", 10**6)
    assert store.get(KEY) is None
    with pytest.warns(UserWarning, match="cannot make") as seen:
        store.put(KEY, b"x", {})
        store.put(KEY, b"x", {})
    assert len(seen) == 1
    assert store.get(KEY) is None and store.entries() == [] and store.size() == 0 and store.clear() == (0, 0)


def test_a_store_without_a_folder_keeps_nothing():
    store = Store(None, 10**6)
    store.put(KEY, b"x", {})
    assert store.get(KEY) is None
    assert store.entries() == [] and store.size() == 0 and store.clear() == (0, 0)


# -- room ----------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first(store):
    keys = [key_of(str(number)) for number in range(10)]
    for age, key in enumerate(keys):
        store.put(key, b"x" * 1000, {})
        os.utime(file_of(store, key), (1e9 + age, 1e9 + age))
    assert store.get(keys[0]) is not None  # used just now
    small = Store(store.folder, store.size() // 2, store.secret)
    small.put(KEY, b"y" * 1000, {})
    left = {entry.key for entry in store.entries()}
    assert {KEY, keys[0], keys[9]} <= left
    assert not left & set(keys[1:5])
    assert small.size() <= small.limit_bytes


def test_a_store_never_grows_past_its_limit(tmp_path):
    store = Store(tmp_path, 20_000)
    for number in range(100):
        store.put(key_of(str(number)), b"x" * 1000, {})
        assert store.size() <= 20_000
    assert len(store.entries()) >= 10


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path):
    store = Store(tmp_path, 1000)
    store.put(key_of("small"), b"x", {})
    store.put(KEY, b"x" * 1000, {})
    assert store.get(KEY) is None
    assert store.get(key_of("small")) == b"x"


def test_unfinished_files_of_dead_processes_go_away(store):
    store.put(KEY, b"x", {})
    old, new = store.folder / "a-1-1.part", store.folder / "b-2-2.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    Store(store.folder, 10**6).put(key_of("another"), b"x", {})
    assert not old.exists() and new.exists()


# -- many processes ------------------------------------------------------------------------------------------------

WORKER = """
import random, sys, warnings
from pathlib import Path
from wayfare.codegen.runtime.cache import Store, key_of
warnings.simplefilter("error")
store = Store(Path(sys.argv[1]), 60_000)
draw = random.Random(int(sys.argv[2]))
found = 0
for _ in range(300):
    name = str(draw.randrange(30))
    expected = name.encode() * 1500
    if draw.random() < 0.5:
        store.put(key_of(name), expected, {"name": name})
    elif draw.random() < 0.02:
        store.clear()
    else:
        data = store.get(key_of(name))
        assert data is None or data == expected
        found += data is not None
    store.entries()
print(found)
"""


def test_processes_write_read_and_clear_at_once(tmp_path):
    command = [sys.executable, "-c", WORKER, str(tmp_path / "kernels")]
    root = Path(cache.__file__).parents[3]
    running = [
        subprocess.Popen([*command, str(seed)], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(3)
    ]
    results = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], results
    assert all(int(out) > 0 for out, _ in results)
    assert not list((tmp_path / "kernels").glob("*.part"))


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch):
    for name in ("WAYFARE_CACHE", "WAYFARE_CACHE_LIMIT", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return monkeypatch


def test_the_folder_is_where_the_system_keeps_caches(bare, tmp_path):
    bare.setenv("HOME", str(tmp_path))
    bare.setenv("USERPROFILE", str(tmp_path))
    assert Settings().cache_folder == tmp_path / ".cache" / "wayfare" / "kernels"
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Settings().cache_folder == tmp_path / "xdg" / "wayfare" / "kernels"
    bare.setenv("XDG_CACHE_HOME", "relative")
    assert Settings().cache_folder == tmp_path / ".cache" / "wayfare" / "kernels"
    bare.setattr(sys, "platform", "darwin")
    assert Settings().cache_folder == tmp_path / "Library" / "Caches" / "wayfare" / "kernels"
    bare.setattr(sys, "platform", "win32")
    bare.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert Settings().cache_folder == tmp_path / "local" / "wayfare" / "kernels"


def test_the_folder_can_be_named_or_turned_off(bare, tmp_path):
    bare.setenv("WAYFARE_CACHE", str(tmp_path / "mine"))
    assert Settings().cache_folder == tmp_path / "mine"
    for word in ("off", "OFF", "0", "none"):
        bare.setenv("WAYFARE_CACHE", word)
        assert Settings().cache_folder is None


def test_a_user_without_a_home_has_no_cache(bare):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    bare.setattr(Path, "home", homeless)
    assert Settings().cache_folder is None


def test_the_limit_is_in_megabytes(bare):
    assert Settings().cache_limit == 256 * 2**20
    bare.setenv("WAYFARE_CACHE_LIMIT", "3")
    assert Settings().cache_limit == 3 * 2**20
    bare.setenv("WAYFARE_CACHE_LIMIT", "many")
    with pytest.warns(UserWarning, match="WAYFARE_CACHE_LIMIT='many' is not a whole number"):
        assert Settings().cache_limit == 256 * 2**20


def test_the_default_store_follows_the_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(cache.settings, "cache_folder", tmp_path / "one")
    first = cache.default_store()
    assert first.folder == tmp_path / "one" and cache.default_store() is first
    monkeypatch.setattr(cache.settings, "cache_folder", None)
    assert cache.default_store().folder is None
