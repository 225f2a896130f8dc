"""SGLang's radix tree -> what its rows are, who may reuse them, and where they lie now."""
