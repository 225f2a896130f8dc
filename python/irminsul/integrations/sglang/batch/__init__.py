"""A batch that SGLang has prepared -> trimmed to its holes, and run one row per hole."""
