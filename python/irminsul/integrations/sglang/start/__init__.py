"""A starting scheduler -> irminsul built into it, or the sentence that says why not."""
