"""Whose kernels are loaded: folders from the root on, modes whatever the umask, a hash that only the user can make."""

import os
import stat

import pytest

from wayfare.codegen.runtime.cache import Store, key_of
from wayfare.codegen.runtime.cache_folder import Folder

KEY = key_of("a loop", "contiguous", "some processor")
posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "kernels", 10**6, tmp_path / "secret" / "kernels.key")


def file_of(store, key=KEY):
    return store.folder / f"{key}.kernel"


@posix
@pytest.mark.parametrize("umask", [0, 0o777])
def test_folders_and_files_have_their_modes_whatever_the_umask(tmp_path, umask):
    store = Store(tmp_path / "above" / "kernels", 10**6, tmp_path / "state" / "kernels.key")
    before = os.umask(umask)
    try:
        store.put(KEY, b"x", {})
    finally:
        os.umask(before)
    assert store.get(KEY) == b"x"
    for folder in (store.folder, store.folder.parent, store.secret.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (file_of(store), store.secret):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@posix
def test_a_folder_that_is_a_link_is_refused(store, tmp_path):
    store.put(KEY, b"x", {})
    (tmp_path / "link").symlink_to(store.folder)
    with pytest.warns(UserWarning, match="is a link"):
        assert Store(tmp_path / "link", 10**6, store.secret).get(KEY) is None


@posix
def test_a_folder_above_that_others_can_write_is_refused(tmp_path):
    """They could put another folder in the place of this one."""
    above = tmp_path / "above"
    store = Store(above / "deep" / "kernels", 10**6, tmp_path / "state" / "kernels.key")
    store.put(KEY, b"x", {})
    above.chmod(0o777)
    with pytest.warns(UserWarning, match=r"above, which .* lies in"):
        assert Store(store.folder, 10**6, store.secret).get(KEY) is None
    above.chmod(0o1777)  # as /tmp is: only owners rename
    assert Store(store.folder, 10**6, store.secret).get(KEY) == b"x"


@posix
def test_the_folder_that_was_looked_at_is_the_one_that_is_read(store, tmp_path, monkeypatch):
    """Between the look and the reading somebody exchanges the folder: what was opened is what counts."""
    store.put(KEY, b"mine", {})
    other = Store(tmp_path / "other", 10**6, store.secret)
    other.put(KEY, b"theirs", {})
    read = Folder.read

    def exchange(folder, name, count=-1):
        if other.folder.exists():
            store.folder.rename(tmp_path / "away")
            other.folder.rename(store.folder)
        return read(folder, name, count)

    monkeypatch.setattr(Folder, "read", exchange)
    assert store.get(KEY) == b"mine"
    assert store.get(KEY) == b"theirs"  # from now on it is another folder


def test_a_kernel_of_somebody_else_is_not_loaded(store, tmp_path):
    """A folder copied from elsewhere is whole and sound, and not of this user."""
    store.put(KEY, b"x", {})
    stranger = Store(store.folder, 10**6, tmp_path / "stranger" / "kernels.key")
    assert stranger.get(KEY) is None
    assert not file_of(store).exists()


def test_without_a_place_of_its_own_the_secret_lies_with_the_kernels(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for secret in (None, tmp_path / "file" / "kernels.key"):
        store = Store(tmp_path / "kernels", 10**6, secret)
        store.put(KEY, b"x", {})
        assert store.get(KEY) == b"x" and (tmp_path / "kernels" / "secret.key").exists()


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_a_secret_that_is_none_is_made_again(tmp_path, damage):
    place = tmp_path / "kernels.key"
    place.write_bytes(damage)
    place.chmod(0o600)
    store = Store(tmp_path / "kernels", 10**6, place)
    store.put(KEY, b"x", {})
    assert len(place.read_bytes()) == 32 and store.get(KEY) == b"x"


@posix
def test_a_secret_that_others_could_have_written_is_made_again(store):
    store.put(KEY, b"x", {})
    known = store.secret.read_bytes()
    store.secret.chmod(0o666)
    from wayfare.codegen.runtime import cache_secret

    cache_secret.secret_in.cache_clear()
    assert store.get(KEY) is None
    assert store.secret.read_bytes() != known and stat.S_IMODE(store.secret.stat().st_mode) == 0o600
