"""Tables, curves and fits over many run directories, read from their files only."""
