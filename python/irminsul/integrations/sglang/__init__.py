"""SGLang's batches, radix tree and KV pool -> reuse of KV rows at other positions.

Start with ``--radix-cache-backend irminsul``; docs/sglang.md tells an operator the rest. Along a
request's way:

- ``plugin`` registers the hooks, ``start`` checks the engine once and builds the cache;
- ``tree`` is SGLang's radix tree, which records what it holds and who may reuse it;
- ``admission`` finds what a request can reuse and lends it a chunk budget for that;
- ``batch`` trims the prepared batch to its holes and gives the model one row per hole;
- ``hooks`` calls these in SGLang's order, with ``spans`` as what they hand on.

``attention`` is a backend of its own, ``share`` borrows rows instead of copying them, ``tiers``
keeps rows beyond the pool. Importing this package imports neither torch nor SGLang.
"""
