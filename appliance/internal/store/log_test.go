package store

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestQuietTellsErrorsOnly(t *testing.T) {
	var out strings.Builder
	log := quiet(slog.New(slog.NewTextHandler(&out, nil))).With(zap.String("member", "one"))
	log.Info("started")
	log.Warn("slow")
	if out.Len() != 0 {
		t.Errorf("got %q, want nothing below an error", out.String())
	}
	log.Error("disk", zap.Error(errors.New("full")))
	for _, want := range []string{"etcd: disk", "member=one", "error=full"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %q, want %q in it", out.String(), want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("fatal: got no panic")
		}
	}()
	log.Fatal("corrupt")
}
