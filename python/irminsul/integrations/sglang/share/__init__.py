"""Reused spans -> pages that requests borrow where they lie: ``IRMINSUL_REUSE=share``.

`lending` lends and gives back, `loans` keeps what one request borrows, `tables` and `kernels` say
which tiles a row reads, `cache` keeps the radix tree right, `start` refuses what cannot borrow.
"""
