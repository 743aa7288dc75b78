"""Keys: who may connect to a server, and what is refused without them."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

import mpwds
from mpwds.errors import MpwdsError, SecurityError, ServerLost
from mpwds.feed import keys
from mpwds.feed.status_client import StatusClient
from tests.feed.faults.proxy import Proxy
from tests.feed.serving import ServerProcess, delivered, large, locally, numbers, served, turned_away
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

PASSING_S = 0.5  # time for a client that must not get in


@pytest.fixture
def folder(tmp_path):
    keys.generate(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def strangers(folder, tmp_path):
    """Keys of a trainer that knows the server's and is not known to it."""
    keys.generate(tmp_path / "strangers")
    shutil.copy(folder / "server.key", tmp_path / "strangers")
    return tmp_path / "strangers"


NO_MATCH = "do not match: copy the folder of keys from the server's machine to this one"
NOT_KNOWN = "it does not know the key of this trainer: copy client.key into its folder of keys"


# Files.


def test_keys_can_be_read_by_their_owner_only(folder):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    names = ["client.key", "client.key_secret", "server.key", "server.key_secret"]
    assert modes == dict.fromkeys(names, 0o600)


def test_keys_that_exist_are_kept(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert keys.generate(folder) == []
    assert [path.name for path in keys.generate(folder, "client-2")] == [
        "client-2.key",
        "client-2.key_secret",
    ]
    assert {name: (folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("gone", ["server.key", "server.key_secret"])
def test_half_a_pair_is_not_overwritten(folder, gone):
    (folder / gone).unlink()
    assert keys.generate(folder) == []
    assert not (folder / gone).exists()


@pytest.mark.parametrize("name", ["server", "clients/one", "../client", ""])
def test_a_client_has_a_name_of_its_own(tmp_path, name):
    with pytest.raises(ValueError, match="a client's name must start with 'client'"):
        keys.generate(tmp_path, name)


USES = {
    "server": lambda folder: mpwds.Server(numbers(), "tcp://127.0.0.1:0", keys=folder),
    "trainer": lambda folder: mpwds.RemoteLoader("tcp://127.0.0.1:7880", keys=folder),
    "monitor": lambda folder: StatusClient(["tcp://127.0.0.1:7880"], folder),
}


@pytest.mark.parametrize(
    ("name", "mode", "message", "uses"),
    [
        (".", 0o777, "others can put keys into .*: `chmod go-w", USES),
        (".", 0o1777, "others can put keys into .*: `chmod go-w", USES),
        (".", 0o770, "others can put keys into .*: `chmod go-w", USES),
        ("server.key_secret", 0o644, "server.key_secret can be read by others: `chmod 600", USES),
        ("server.key_secret", 0o640, "server.key_secret can be read by others: `chmod 600", USES),
        ("client.key_secret", 0o604, "client.key_secret can be read by others: `chmod 600", USES),
        ("client.key", 0o664, "others can write to .*client.key: `chmod 600", ["server"]),
        ("server.key", 0o664, "others can write to .*server.key: `chmod 600", ["trainer"]),
    ],
)
def test_keys_that_others_can_read_or_replace_are_refused(folder, name, mode, message, uses):
    os.chmod(folder / name, mode)
    for use in uses:
        with pytest.raises(SecurityError, match=message):
            USES[use](folder)


@pytest.mark.parametrize("use", ["server", "monitor"])
def test_keys_on_a_read_only_mount_may_have_any_modes_as_secrets_of_kubernetes(folder, use):
    unshared = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshared, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    program = f"from tests.feed.test_keys import USES; USES[{use!r}]({str(folder)!r}).close()"
    python = f'exec {sys.executable} -c "$0"'
    mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && {python}"
    for path in folder.iterdir():
        os.chmod(path, 0o444)
    for options, status in ((["sh", "-c", mount], 0), ([sys.executable, "-c"], 1)):
        done = subprocess.run([*unshared, *options, program], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    assert "can be read by others" in done.stderr


def test_a_folder_and_public_keys_that_others_can_read_serve(folder):
    os.chmod(folder, 0o755)
    os.chmod(folder / "client.key", 0o644)
    USES["server"](folder).close()


def test_a_damaged_key_shuts_out_its_own_client_alone(folder):
    with ServerProcess(numbers(), keys=folder) as server:
        (folder / "client-0.key").write_text("damaged")  # read before that of the client that comes
        with mpwds.RemoteLoader(server.url, keys=folder, output="numpy") as loader:
            assert len(delivered(loader)) == 24


@pytest.mark.filterwarnings("ignore:waiting for the server")
def test_nobody_gets_in_while_keys_cannot_be_looked_up(folder, monkeypatch, caplog):
    knows = keys._knows
    monkeypatch.setattr(keys, "_knows", lambda folder, key: 1 / 0)
    with served(numbers(), keys=folder) as server:
        turned_away(server.url, because="does not know the key", keys=folder)
        assert "keys of clients cannot be looked up: ZeroDivisionError" in caplog.text
        monkeypatch.setattr(keys, "_knows", knows)
        with mpwds.RemoteLoader(server.url, keys=folder, output="numpy") as loader:
            assert len(delivered(loader)) == 24


def test_a_thousand_failed_handshakes_that_nobody_looks_at_keep_no_client_out():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as client:
        address = "127.0.0.1", router.bind_to_random_port("tcp://127.0.0.1")
        with contextlib.closing(keys.Handshakes(router, deque())) as handshakes:
            for _ in range(1200):
                with socket.create_connection(address) as stranger:
                    stranger.send(b"GET / HTTP/1.1\r\n" * 4)
            client.linger = 0
            client.connect("tcp://{}:{}".format(*address))
            client.send(b"hello")
            assert router.poll(600_000)
            assert next(handshakes.failures()).startswith("no key, a wrong one, not ZeroMQ, or gone at once")


def test_each_unknown_key_is_told_with_its_address(folder, strangers):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        with keys.secured_server(context, router, folder) as refused:
            port = router.bind_to_random_port("tcp://127.0.0.1")
            with contextlib.closing(keys.Handshakes(router, refused)) as handshakes:
                for address in ("127.0.0.2", "127.0.0.3"):
                    expected = f"a client's key is not known (from {address})"
                    with keys.client_socket(context, "tcp://127.0.0.1:9", strangers, 1000) as stranger:
                        stranger.connect(f"tcp://{address}:0;127.0.0.1:{port}")
                        wait_until(lambda text=expected: text in handshakes.failures(), expected, 20)


def test_a_message_beyond_a_trainers_limit_breaks_the_connection_and_is_not_received():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.linger = 0
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with keys.client_socket(context, url := f"tcp://127.0.0.1:{port}", None, 1000) as client:
            with client.get_monitor_socket(zmq.EVENT_DISCONNECTED) as breaks:
                client.connect(url)
                client.send(b"hello")
                who, _ = server.recv_multipart()
                for size in (1000, 1001):
                    server.send_multipart([who, bytes(size)])
                assert breaks.poll(600_000)
                client.disable_monitor()
            assert len(client.recv()) == 1000
            assert not client.poll(0)


def test_no_keys_are_made_where_others_can_put_theirs(tmp_path):
    os.chmod(tmp_path, 0o777)
    with pytest.raises(SecurityError, match="others can put keys into"):
        keys.generate(tmp_path)


def test_a_folder_of_keys_is_made_for_its_owner_alone(tmp_path):
    umask = os.umask(0)
    try:
        keys.generate(tmp_path / "keys")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "server.key_secret").unlink(), "there is no key .*: make keys with"),
        (lambda folder: (folder / "client.key").write_bytes(b"short\n"), "does not hold a key"),
        (lambda folder: (folder / "client.key").write_bytes(40 * b"~"), "does not hold a key"),
        (lambda folder: (folder / "client.key").unlink(), "no public key of a client"),
    ],
)
def test_a_server_names_the_key_that_it_lacks(folder, spoil, message):
    spoil(folder)
    with pytest.raises(MpwdsError, match=message):
        mpwds.Server(numbers(), "tcp://127.0.0.1:0", keys=folder)


def test_a_trainer_names_the_key_that_it_lacks(tmp_path):
    for use in (mpwds.RemoteLoader, StatusClient):
        with pytest.raises(MpwdsError, match="there is no key .*client.key_secret: copy the folder of keys"):
            use(["tcp://127.0.0.1:7880"], **{"keys" if use is mpwds.RemoteLoader else "folder": tmp_path})


# Without keys, nothing off loopback.


@pytest.mark.parametrize(
    "url", ["tcp://0.0.0.0:7880", "tcp://*:7880", "tcp://[::]:7880", "tcp://eth0:7880", "tcp://10.0.0.1:7880"]
)
def test_nothing_is_served_or_asked_off_loopback_without_keys(url):
    for use in (lambda: mpwds.Server(numbers(), url), lambda: StatusClient([url])):
        with pytest.raises(SecurityError, match="can be reached from other machines: pass keys="):
            use()
    for urls in (url, ["tcp://127.0.0.1:7880", url]):
        with pytest.raises(SecurityError, match="can be reached from other machines: pass keys="):
            mpwds.RemoteLoader(urls, server_timeout=1.0)


def test_a_url_with_a_second_host_is_no_way_around():
    for url in ("tcp://127.0.0.1:0;10.0.0.1:7880", "tcp://127.0.0.1;10.0.0.1:7880"):
        with pytest.raises((ValueError, SecurityError)):
            mpwds.RemoteLoader(url)


def test_an_insecure_server_says_so_loudly(caplog):
    with mpwds.Server(numbers(), "tcp://0.0.0.0:0", insecure=True):
        pass
    assert "anybody who reaches this port can read the data (insecure)" in caplog.text


# With keys.


@pytest.mark.parametrize("dataset", [numbers(), large()], ids=["small", "large"])
def test_batches_travel_encrypted_as_they_are(folder, dataset):
    with ServerProcess(dataset, workers=2, keys=folder) as server:
        for shared_memory in (True, False):
            options = {"keys": folder, "shared_memory": shared_memory, "output": "numpy"}
            with mpwds.RemoteLoader(server.url, **options) as loader:
                assert delivered(loader) == locally(dataset, 2)[0]


def test_who_has_no_known_key_gets_nothing_and_is_logged(folder, strangers, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    keys.generate(elsewhere)
    with ServerProcess(numbers(), workers=2, keys=folder) as server:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"", bytes(1000)):  # other programs
            with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
                connection.sendall(said)
        wait_until(lambda: "no key, a wrong one, not ZeroMQ" in server.log, "its log")
        turned_away(server.url, NO_MATCH)
        turned_away(server.url, NO_MATCH, keys=elsewhere)  # takes the server for another one
        turned_away(server.url, NOT_KNOWN, keys=strangers)
        with StatusClient([server.url], timeout=PASSING_S) as inspector:
            with pytest.raises(ServerLost, match="no answer"):
                inspector.status()
        with StatusClient([server.url], folder) as inspector:
            now = inspector.status()[0]
            assert (now["url"], now["dropped"].keys(), now["clients"]) == (server.url, {"handshake"}, [])
        with mpwds.RemoteLoader(server.url, keys=folder, output="numpy") as loader:
            assert delivered(loader) == locally(numbers(), 2)[0]


@pytest.mark.parametrize(("at_server", "at_trainer"), [(True, True), (True, False), (False, True)])
def test_keys_that_cannot_match_are_an_error_without_a_long_wait(folder, tmp_path, at_server, at_trainer):
    """Two folders that were each made by ``keygen``, or keys on one side only."""
    keys.generate(tmp_path / "others")
    with ServerProcess(numbers(), keys=folder if at_server else None) as server:
        options = {"keys": tmp_path / "others" if at_trainer else None, "server_timeout": None}
        with pytest.raises(ServerLost, match=NO_MATCH):
            mpwds.RemoteLoader(server.url, **options)


@pytest.mark.slow
def test_a_key_that_is_added_or_removed_counts_from_the_next_connection_on(folder, strangers):
    with ServerProcess(numbers(), workers=2, keys=folder) as server:
        turned_away(server.url, NOT_KNOWN, keys=strangers)
        shutil.copy(strangers / "client.key", folder / "client-2.key")
        (folder / "client-3.key").write_bytes(b"damaged")
        for each in (strangers, folder):
            with mpwds.RemoteLoader(server.url, workers=1, keys=each, output="numpy") as loader:
                assert len(delivered(loader)) == 24
        (folder / "client-2.key").unlink()
        turned_away(server.url, NOT_KNOWN, keys=strangers)


def test_a_trainer_that_waits_is_served_once_its_key_is_there(folder, strangers):
    with ServerProcess(numbers(), keys=folder) as server:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(mpwds.RemoteLoader, server.url, keys=strangers, output="numpy")
            wait_until(lambda: "a client's key is not known" in server.log, "it to happen")
            shutil.copy(strangers / "client.key", folder / "client-2.key")
            with waiting.result(600) as loader:
                assert len(delivered(loader)) == 24


@pytest.mark.filterwarnings("ignore:the server tcp:RuntimeWarning")
def test_a_server_comes_back_after_another_program_answered_in_its_place(folder):
    with ServerProcess(numbers(), workers=2, keys=folder) as server, Proxy(server.url) as proxy:
        options = {"keys": folder, "heartbeat_timeout": 2, "output": "numpy"}
        with mpwds.RemoteLoader(proxy.url, **options) as loader:
            first, second = locally(numbers(), 2, epochs=2)
            assert delivered(loader) == first
            proxy.answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
            proxy.break_connections()
            wait_until(lambda: not proxy.answer, "it to happen")
            assert delivered(loader) == second
