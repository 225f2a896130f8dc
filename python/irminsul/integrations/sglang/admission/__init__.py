"""A request that SGLang is about to admit -> what it will reuse, and when its round ends."""
