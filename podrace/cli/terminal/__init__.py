"""What commands share when they write to a terminal: options, output, formats, interrupts."""
