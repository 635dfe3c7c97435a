"""What is answered while the engine loads, after it failed, and when it hangs."""

import httpx
from http_helpers import Connect, ask
from scripted_engine import ScriptedEngine


def test_loading_is_503_with_a_time_to_come_back(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.load()
    for response in (ask(client), ask(client, stream=True), client.get("/v1/models"), client.get("/v1/models/x")):
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "server_error"
    for path, status in (("/health", 200), ("/ready", 503)):
        response = client.get(path)
        assert (response.status_code, response.json()["status"]) == (status, "loading")
    assert int(response.headers["retry-after"]) >= 1


def test_failed_engine_gives_its_reason_but_health_keeps_it_private(
    client: httpx.Client, scripted: ScriptedEngine
) -> None:
    scripted.fail("The file /home/me/model.safetensors is cut short.")
    response = ask(client)
    assert response.status_code == 503
    assert "cut short" in response.json()["error"]["message"]
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "failed")
    assert "/home" not in health.text
    assert client.get("/ready").status_code == 503


def test_closed_engine_is_503(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.close()
    assert ask(client).json()["error"]["code"] == "engine_closed"


def test_health_follows_the_heartbeat(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(stalled_s=5)
    for path in ("/health", "/ready"):
        assert client.get(path).json()["status"] == "ok"
        assert client.head(path).status_code == 200
    scripted.age = 6.0
    for path in ("/health", "/ready"):
        assert (client.get(path).status_code, client.get(path).json()["status"]) == (503, "stalled")
        assert (client.head(path).status_code, client.head(path).content) == (503, b"")


def test_engine_that_closes_during_a_stream_ends_it(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = lambda row: (row.say("a"), scripted.close(0), row.wait())
    response = ask(client, stream=True)
    assert '"code":"engine_closed"' in response.text
    assert response.text.endswith("data: [DONE]\n\n")
