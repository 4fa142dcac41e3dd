package appliance

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// run serves until ctx ends or a part cannot go on, then ends the parts from the outside in: people first, so that nobody orders
// anything new; then the site agent, the sessions, the workflows and, last, the store, which every other part still writes to.
func (p *parts) run(ctx context.Context) error {
	if err := p.serve(ctx); err != nil {
		return errors.Join(err, p.close())
	}
	return p.close()
}

func (p *parts) serve(ctx context.Context) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	if err := p.control.Start(work); err != nil {
		return err
	}
	if err := p.roster.Start(work); err != nil {
		return err
	}
	following, stopFollowing := context.WithCancel(work)
	defer stopFollowing()
	endFollowing := p.follow(following)
	if err := p.executor.Start(work); err != nil {
		stopFollowing()
		endFollowing()
		return err
	}
	siteCtx, stopSite := context.WithCancel(work)
	defer stopSite()

	group, failed := errgroup.WithContext(ctx)
	group.Go(func() error { return p.gateway.Serve(p.listener) })
	group.Go(func() error { return p.api.Serve(p.socket) })
	if p.web != nil {
		group.Go(p.web.serve)
	}
	group.Go(func() error { p.control.KeepPolicy(work); return nil })
	if p.site != nil {
		group.Go(func() error {
			if err := p.site.Run(siteCtx); err != nil || siteCtx.Err() != nil {
				return err
			}
			return errors.New("the site agent ended by itself")
		})
	}
	p.cfg.Log.Info("appliance serves", "agents", p.listener.Addr(), "socket", p.cfg.File.Socket, "boots", p.site != nil, "site_node", p.siteNode)
	p.cfg.Ready()
	<-failed.Done()

	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	p.stopPeople(end)
	stopSite()
	p.gateway.Stop(end)
	stopWork()
	done := make(chan error, 1)
	go func() {
		err := group.Wait()
		p.executor.Wait()
		p.roster.Wait()
		endFollowing()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-end.Done():
		return fmt.Errorf("end the appliance: a part did not end within %v", endTimeout)
	}
}
