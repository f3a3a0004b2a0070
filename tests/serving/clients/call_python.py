"""Calls the shop through the client that openapi-python-client generates; run in the environment of the clients."""

import json
import sys
from importlib import import_module
from typing import Any

url, package = sys.argv[1:]
client = import_module(package).Client(base_url=url)
models = import_module(f"{package}.models")


def operation(tag: str, name: str) -> Any:
    return import_module(f"{package}.api.{tag}.{name}")


found = operation("shop", "shop_find").sync_detailed(
    client=client, body=models.ShopFindBody(name="chair", limit=2, colours=[models.Colour.RED])
)
asked = operation("shop", "shop_findget").sync_detailed(client=client, name="chair", limit=1)
refused = operation("shop", "shop_buy").sync_detailed(client=client, body=models.ShopBuyBody(item=2))
depth = operation("shop_trees", "shop_trees_depth").sync(
    client=client, body=models.ShopTreesDepthBody(tree=models.Node(value=1, children=[models.Node(value=2)]))
)
watch = operation("shop", "shop_watchget")
with client.get_httpx_client().stream(**watch._get_kwargs(item=5)) as response:
    lines = [line for line in response.iter_lines() if line.startswith(("data:", "event:"))]

result = {
    "found": [found.status_code.value, found.parsed[0].name, len(found.parsed), found.parsed[0].price.currency],
    "asked": [asked.status_code.value, len(asked.parsed)],
    "refused": [refused.status_code.value, json.loads(refused.content)["code"]],
    "depth": depth,
    "events": sum(line.startswith("data:") for line in lines),
    "ended": "event: operations.complete" in lines,
}
sys.stdout.write(json.dumps(result))
