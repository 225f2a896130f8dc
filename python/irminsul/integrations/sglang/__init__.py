"""SGLang's batches, radix tree and KV pool -> reuse of KV rows at other positions.

Start with ``--radix-cache-backend irminsul``; docs/sglang.md tells an operator the rest.

``plugin`` registers, ``build`` checks the engine and makes the cache, ``cache`` is the radix tree
that records what it holds, ``planner`` trims a batch to its holes, ``hooks`` runs it. Importing
this package imports neither torch nor SGLang.
"""
