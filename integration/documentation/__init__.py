"""The reference: a site of static pages, made from docstrings, the registry and what runs here."""
