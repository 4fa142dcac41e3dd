package scenario

import (
	"bytes"
	"io"
)

// maxConsoleLine bounds a line of the appliance's console, in bytes; a longer one is cut in two.
const maxConsoleLine = 64 << 10

// What the appliance says to whoever started it, and the line of it that no file may hold.
const (
	consolePrefix = "firstlight: "
	secretPrefix  = "firstlight: one-time code"
)

// console takes what the appliance says on its standard error: all of it goes into its log but the one-time code, and what is meant
// for a person to told as well. One goroutine writes to it (os/exec).
type console struct {
	log  io.Writer
	told func(line string)
	rest []byte
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	for {
		end := bytes.IndexByte(c.rest, '\n')
		if end < 0 && len(c.rest) < maxConsoleLine {
			return len(p), nil
		}
		if end < 0 {
			end = len(c.rest) - 1
		}
		line := c.rest[:end+1]
		if err := c.line(line); err != nil {
			return 0, err
		}
		c.rest = append(c.rest[:0], c.rest[end+1:]...)
	}
}

func (c *console) line(line []byte) error {
	if bytes.HasPrefix(line, []byte(consolePrefix)) {
		c.told(string(bytes.TrimSpace(line)))
	}
	if bytes.HasPrefix(line, []byte(secretPrefix)) {
		return nil
	}
	_, err := c.log.Write(line)
	return err
}
