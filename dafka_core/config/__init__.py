"""Options and rules, declared once: names, types, defaults, units and meanings."""
