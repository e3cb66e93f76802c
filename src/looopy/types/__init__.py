"""The vocabulary: frozen data without I/O, importable by every floor above."""
