"""The heap analyzer: finds which objects of the program hold ever more memory, when the exporter asks."""
