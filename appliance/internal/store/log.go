package store

import (
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quiet is etcd's logger: errors go to log, the rest nowhere. What etcd calls fatal is a panic, because its own way is to end the
// process without a word.
func quiet(log *slog.Logger) *zap.Logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return zap.New(slogCore{log}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// slogCore is a zapcore.Core that writes to slog.
type slogCore struct{ log *slog.Logger }

// Enabled implements zapcore.LevelEnabler.
func (slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.ErrorLevel }

// With implements zapcore.Core.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.log.With(attrs(fields)...)}
}

// Check implements zapcore.Core.
func (c slogCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Error("etcd: "+e.Message, attrs(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (slogCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	out := make([]any, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		out = append(out, slog.Any(k, v))
	}
	return out
}
